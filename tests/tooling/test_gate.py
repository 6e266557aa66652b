"""The gate: what passed on the pristine pin has to pass now."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci import gate
from ci.errors import Fault
from ci.gate import Baseline, judge
from ci.pin import load_pin

BEFORE = {"t.py::a": "passed", "t.py::b": "passed", "t.py::known": "failed", "t.py::s": "skipped"}


def test_the_same_is_good() -> None:
    verdict = judge(BEFORE, BEFORE)
    assert verdict.failures == ()
    assert verdict.passed == 2
    assert verdict.known == ("t.py::known", "t.py::s")


@pytest.mark.parametrize("word", ["failed", "skipped", "xfailed", "xpassed"])
def test_whatever_no_longer_passes_is_a_failure(word: str) -> None:
    verdict = judge(BEFORE, {**BEFORE, "t.py::a": word})
    assert verdict.regressed == ("t.py::a",)
    assert verdict.failures == ("t.py::a: passed on the pristine pin, fails now",)


def test_a_test_that_vanished() -> None:
    now = {node: word for node, word in BEFORE.items() if node != "t.py::b"}
    assert judge(BEFORE, now).vanished == ("t.py::b",)
    assert judge(BEFORE, now, partial=True).failures == ()


def test_a_failure_that_nobody_recorded() -> None:
    verdict = judge(BEFORE, {**BEFORE, "t.py::new": "failed", "t.py::fine": "passed"})
    assert verdict.unknown == ("t.py::new",)


def test_what_is_mended_or_meant() -> None:
    now = {"t.py::a": "passed", "t.py::b": "failed", "t.py::known": "passed"}
    verdict = judge(BEFORE, now, ["t.py::b"])
    assert verdict.failures == ()
    assert verdict.accepted == ("t.py::b",)
    assert verdict.mended == ("t.py::known",)


def test_a_baseline_survives_being_written(tmp_path: Path) -> None:
    tests = {"a/t.py::x[1-a::b]": "passed", "a/t.py::C::m": "failed", "b.py::é": "skipped"}
    path = tmp_path / "baseline.json"
    path.write_text(gate.dump_baseline(Baseline({"base_tree": "1" * 40}, tests)), "utf-8")
    read = gate.load_baseline(path, "1" * 40)
    assert read.tests == tests
    with pytest.raises(Fault, match="recorded on another vLLM"):
        gate.load_baseline(path, "2" * 40)
    path.write_text("{}")
    with pytest.raises(Fault, match="is damaged"):
        gate.load_baseline(path, "1" * 40)
    path.unlink()
    with pytest.raises(Fault, match="is missing"):
        gate.load_baseline(path, "1" * 40)


def test_a_selection(tmp_path: Path) -> None:
    path = tmp_path / "selection.toml"
    path.write_text(
        '[[group]]\nname = "a"\nwhy = "w"\nfiles = ["t.py"]\nslow = true\n'
        '[[accepted]]\ntest = "t.py::x"\nwhy = "meant"\n'
    )
    selection = gate.load_selection(path)
    assert selection.groups[0].slow
    assert selection.accepted == {"t.py::x": "meant"}
    path.write_text('[[group]]\nname = "a"\n')
    with pytest.raises(Fault, match=r"selection\.toml: 'why' is missing"):
        gate.load_selection(path)


def test_the_selection_and_baseline_of_this_project() -> None:
    root = Path(__file__).parents[2]
    selection = gate.load_selection(root / "tests/upstream/selection.toml")
    names = [group.name for group in selection.groups]
    files = [file for group in selection.groups for file in group.files]
    assert len(set(names)) == len(names)
    assert len(set(files)) == len(files)
    pin = load_pin(root / "pin.toml")
    baseline = gate.load_baseline(root / "tests/upstream/baseline.json", pin.base_tree)
    for group in selection.groups:
        passed = [n for n, word in baseline.tests.items() if group.holds(n) and word == "passed"]
        assert passed or group.slow, group.name
