"""Names from pin.toml, series.toml and the command line that become refs of git."""

from __future__ import annotations

import subprocess

import pytest

from ci.core.content import may_be_ref
from ci.core.errors import Fault
from ci.roll.target import key_of
from ci.series.model import Series, Topic, dump_series, load_series
from tests.tooling.projects import Project

ODD = ("a..b", "a.", "a.lock", ".a", "-a", "--upload-pack=x", "a/../b", "a b", "a~1", "a:b", "a@{b")


def _git_takes(name: str) -> bool:
    words = ["git", "check-ref-format", f"refs/heads/{name}"]
    return subprocess.run(words, check=False).returncode == 0


@pytest.mark.parametrize("name", ["a", "0.18.1", "token-writer", "a.b_c", "1.0+cpu", *ODD])
def test_what_may_be_a_ref_is_one_for_git(name: str) -> None:
    assert may_be_ref(name) == (name not in ODD)
    assert not may_be_ref(name) or _git_takes(name)


@pytest.mark.parametrize("name", ["0.18.1", "release/1", "a...b..lock", "..", *ODD])
def test_every_target_has_a_name_for_folders_and_refs(name: str) -> None:
    assert may_be_ref(key_of(name))


@pytest.mark.parametrize("name", [*ODD, "Big", ""])
def test_a_topic_that_could_be_no_branch(project: Project, name: str) -> None:
    series = load_series(project.layout)
    topics = (*series.topics, Topic(name, "A topic"))
    project.layout.series.write_bytes(dump_series(Series(topics, series.patches)))
    with pytest.raises(Fault, match=r"should have a name of small letters|takes for no branch"):
        load_series(project.layout)
