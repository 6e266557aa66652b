"""Apply: the same commits everywhere, nothing of the user's lost."""

from __future__ import annotations

import time

from tests.tooling.projects import A3, UPSTREAM, Project


def test_the_sample_is_what_was_committed(project: Project) -> None:
    files = project.files()
    assert files["vllm/a.py"] == A3.data
    assert files["win.txt"] == b"r1\r\nR2\r\nr3\r\n"
    assert "vllm/gone.py" not in files
    assert files['docs/été "1".md'] == UPSTREAM['docs/été "1".md'].data
    assert project.git("status", "--porcelain") == ""
    assert project.git("branch", "--show-current") == "series"
    assert len(project.git("log", "--format=%s").splitlines()) == 4


def test_nothing_to_do_is_fast_and_changes_nothing(project: Project) -> None:
    project.apply()
    before = {p: p.stat().st_mtime_ns for p in project.root.rglob("*") if p.is_file()}
    start = time.perf_counter()
    done = project.apply()
    assert not done.changed
    assert time.perf_counter() - start < 1
    after = {p: p.stat().st_mtime_ns for p in project.root.rglob("*") if p.is_file()}
    assert after == before
