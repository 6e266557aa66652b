"""What every test of the tooling stands on: a clock that stands still, and a sample."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.core.content import REGULAR, Content
from ci.git.repo import Git, Result
from tests.tooling.projects import (
    A2,
    A3,
    CLOCK,
    TAG,
    UPSTREAM,
    Project,
    clone_of,
    commit,
    edit,
    text,
)


def _settle(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / "gitconfig"))
    # A test that asks a package index for something is wrong: it finds none.
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple/")
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_DATE", CLOCK)
        monkeypatch.setenv(f"GIT_{role}_NAME", "A User")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "user@example.invalid")


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The user's git has a fixed clock and a configuration of its own."""
    _settle(monkeypatch, tmp_path_factory.getbasetemp() / "home")


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The clock and configuration, for fixtures that outlive one test."""
    with pytest.MonkeyPatch.context() as patch:
        _settle(patch, tmp_path_factory.getbasetemp() / "home")
        yield


@pytest.fixture(scope="session")
def _sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A series of three patches in two topics, made from real commits."""
    where = tmp_path_factory.mktemp("sample")
    with pytest.MonkeyPatch.context() as patch:
        _settle(patch, where / "home")
        project = Project.make(where / "project", UPSTREAM)
        clone = clone_of(project, where / "clone")
        setup = edit(UPSTREAM["setup.py"], ("setup line 6\n", "setup line six\n"))
        commit(clone, "[Build] Say six", {"setup.py": setup})
        project.take(clone, f"{TAG}..HEAD", "build", "The build")
        subprocess.run(["git", "-C", str(clone), "tag", "one"], check=True)
        commit(
            clone,
            "[Core] Add a new file",
            {"vllm/a.py": A2, "vllm/new.py": text("new = 1", "newer = 2")},
            "It is needed.\n\nIn two paragraphs.",
        )
        commit(
            clone,
            "[Bugfix] Thirty, and no going",
            {
                "vllm/a.py": A3,
                "vllm/gone.py": None,
                "tests/test_new.py": text("def test_new():", "    assert True"),
                "win.txt": Content(REGULAR, b"r1\r\nR2\r\nr3\r\n"),
            },
        )
        project.take(clone, "one..HEAD", "core")
        # A topic of no patch came with the empty project.
        toml = project.layout.series
        head, _, rest = toml.read_text().partition('\n[[topic]]\nname = "all"\n')
        toml.write_text(head + rest[rest.index("\n[[topic]]") :])
        # Without the backups that taking the commits has left.
        shutil.rmtree(project.work)
        project.apply()
    yield project


@pytest.fixture
def project(_sample: Project, tmp_path: Path) -> Project:
    """The sample, applied, in a folder of its own."""
    return _sample.copy(tmp_path / "project")


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package index answers, and no repository."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(Git, "attempt_list", lambda self, *words: Result(128, b"", b""))
