"""The gate: what passed on the pristine pin has to pass now."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.pinned.pin import load_pin
from ci.testing import gate
from ci.testing.gate import Baseline, judge
from ci.testing.groups import Accepted, load_selection
from ci.testing.plan import engine_groups

BEFORE = {"t.py::a": "passed", "t.py::b": "passed", "t.py::known": "failed", "t.py::s": "skipped"}


def test_the_same_is_good() -> None:
    verdict = judge(BEFORE, BEFORE)
    assert verdict.failures == ()
    assert verdict.remarks == (
        "2 passed as on the pristine pin",
        "2 did not pass on the pristine pin either",
    )


@pytest.mark.parametrize("word", ["failed", "skipped", "xfailed", "xpassed"])
def test_whatever_no_longer_passes_is_a_failure(word: str) -> None:
    verdict = judge(BEFORE, {**BEFORE, "t.py::a": word})
    assert verdict.failures == ("t.py::a: passed on the pristine pin, fails now",)


def test_a_test_that_vanished() -> None:
    now = {node: word for node, word in BEFORE.items() if node != "t.py::b"}
    assert judge(BEFORE, now).failures == ("t.py::b: passed on the pristine pin, does not run now",)
    assert judge(BEFORE, now, partial=True).failures == ()


def test_a_failure_that_nobody_recorded() -> None:
    verdict = judge(BEFORE, {**BEFORE, "t.py::new": "failed", "t.py::fine": "passed"})
    assert verdict.failures == ("t.py::new: fails, and is not in the baseline",)


def test_what_is_mended_or_meant() -> None:
    now = {"t.py::a": "passed", "t.py::b": "failed", "t.py::known": "passed"}
    verdict = judge(BEFORE, now, ["t.py::b"])
    assert verdict.failures == ()
    assert verdict.remarks == (
        "1 passed as on the pristine pin",
        "1 did not pass on the pristine pin, pass now",
        "1 changed on purpose",
    )


def test_a_baseline_survives_being_written(tmp_path: Path) -> None:
    tests = {"a/t.py::x[1-a::b]": "passed", "a/t.py::C::m": "failed", "b.py::é": "skipped"}
    path = tmp_path / "baseline.json"
    path.write_text(gate.dump_baseline(Baseline({"base_tree": "1" * 40}, tests)), "utf-8")
    read = gate.load_baseline(tmp_path, "1" * 40)
    assert read.tests == tests
    with pytest.raises(Fault, match="recorded on another vLLM"):
        gate.load_baseline(tmp_path, "2" * 40)
    path.write_text("{}")
    with pytest.raises(Fault, match="is damaged"):
        gate.load_baseline(tmp_path, "1" * 40)
    path.unlink()
    with pytest.raises(Fault, match="is missing"):
        gate.load_baseline(tmp_path, "1" * 40)


def test_a_selection(tmp_path: Path) -> None:
    path = tmp_path / "selection.toml"
    path.write_text(
        '[[group]]\nname = "a"\nwhy = "w"\nfiles = ["t.py"]\nslow = true\n'
        '[[accepted]]\ntest = "t.py::x"\nwhy = "meant"\n'
    )
    selection = load_selection(tmp_path)
    assert selection.group[0].slow
    assert selection.accepted == (Accepted("t.py::x", "meant"),)
    path.write_text('[[group]]\nname = "a"\n')
    with pytest.raises(
        Fault, match=r"selection\.toml: group a: object missing required field `why`"
    ):
        load_selection(tmp_path)


def test_the_selection_and_baseline_of_this_project() -> None:
    layout = Layout(Path(__file__).parents[2], "0.17.1")
    selection = load_selection(layout.tests.upstream)
    names = [group.name for group in selection.group]
    files = [file for group in selection.group for file in group.files]
    assert len(set(names)) == len(names)
    assert len(set(files)) == len(files)
    pin = load_pin(layout.pin)
    baseline = gate.load_baseline(layout.tests.upstream, pin.base_tree)
    for group in selection.group:
        passed = [n for n, word in baseline.tests.items() if group.holds(n) and word == "passed"]
        assert passed or group.slow, group.name


def test_every_engine_test_is_in_one_process() -> None:
    paths = Layout(Path(__file__).parents[2], "0.17.1").tests
    files = [file for group in load_selection(paths.engine).group for file in group.files]
    there = [path.name for path in paths.engine.glob("test_*.py")]
    assert sorted(files) == sorted(there)
    assert "others" not in engine_groups(paths)
