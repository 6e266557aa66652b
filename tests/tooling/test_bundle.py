"""The device checks: the script that runs them, and what becomes of its findings."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ci.core.errors import Fault
from ci.testing import bundle
from ci.testing.device_figures import page, read_findings, settle_debt

TESTS = Path(__file__).resolve().parents[1]
CHECKS, BENCH = TESTS / "device", TESTS.parent / "bench" / "0.17.1"


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """run.py out of a bundle that holds next to nothing."""
    folder = tmp_path / "device"
    shutil.copytree(CHECKS, folder)
    for name in ("tree", "site", "models"):
        with tarfile.open(folder / f"{name}.tar.gz", "w:gz"):
            pass
    (tmp_path / "out" / "work" / "tree").mkdir(parents=True)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("run", folder / "run.py")
    assert spec is not None and spec.loader is not None
    run = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run", run)
    spec.loader.exec_module(run)
    monkeypatch.setenv("DEVICE_FINDINGS", str(tmp_path / "out" / "findings.jsonl"))
    monkeypatch.setattr(run, "has_gpu", lambda: False)
    monkeypatch.setattr(run, "unpack", lambda: run.WORK.joinpath("tree").mkdir(parents=True))
    shutil.rmtree(tmp_path / "out")
    yield run
    sys.modules.pop("findings", None)


def _found(checks: ModuleType) -> dict[str, dict[str, Any]]:
    lines = (checks.OUT / "findings.jsonl").read_text().splitlines()
    return {one["part"]: one for one in map(json.loads, lines)}


def _run(checks: ModuleType, monkeypatch: pytest.MonkeyPatch, *parts: Any) -> int:
    monkeypatch.setattr(checks, "parts", lambda gpu: list(parts))
    status: int = checks.main([])
    return status


def test_all_parts_fit_into_ten_minutes(checks: ModuleType) -> None:
    for gpu in (True, False):
        assert sum(part.seconds for part in checks.parts(gpu)) <= 600


def test_every_script_of_a_part_is_there(checks: ModuleType) -> None:
    for part in checks.parts(True):
        for word in part.command:
            if word.startswith(str(checks.HERE)):
                there = Path(word.replace(f"{checks.HERE}/bench", str(BENCH)))
                assert there.is_file(), word


def test_what_passes_fails_and_lacks_something(
    checks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = checks.Part("good", 60, ("-c", "pass"))
    assert _run(checks, monkeypatch, good) == 0
    gpu = checks.Part("gpu", 60, ("-c", "raise SystemExit(1)"), needs_gpu=True)
    tool = checks.Part("tool", 60, ("-c", "pass"), before=("no-such-program",))
    assert _run(checks, monkeypatch, good, gpu, tool) == 2
    found = _found(checks)
    assert found["good"]["outcome"] == "passed"
    assert found["gpu"]["outcome"] == found["tool"]["outcome"] == "not run"
    assert found["gpu"]["values"] == {"reason": "needs a CUDA device"}
    assert found["tool"]["values"] == {"reason": "needs no-such-program"}
    bad = checks.Part("bad", 60, ("-c", "print('so it ends'); raise SystemExit(3)"))
    assert _run(checks, monkeypatch, bad, gpu) == 1
    assert _found(checks)["bad"]["values"] == {"status": 3, "last_line": "so it ends"}


def test_a_part_that_runs_out_of_time_takes_its_children_along(
    checks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    code = (
        "import subprocess, sys, pathlib, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(child.pid))\n"
        "time.sleep(600)"
    )
    after = checks.Part("after", 60, ("-c", "pass"))
    assert _run(checks, monkeypatch, checks.Part("slow", 3, ("-c", code)), after) == 1
    assert _found(checks)["slow"]["values"] == {"reason": "over 3 s"}
    assert _found(checks)["after"]["outcome"] == "passed"
    for _ in range(100):  # until init has buried it
        try:
            os.kill(int(pid.read_text()), 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    assert "Z" in Path(f"/proc/{pid.read_text()}/stat").read_text().split()[2]


def test_tests_are_findings_as_they_end(
    checks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tests = tmp_path / "test_three.py"
    tests.write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 1 == 2\n"
        "@pytest.mark.skip(reason='no device')\n"
        "def test_not(): pass\n"
    )
    part = checks.Part("tests", 60, (*checks.PYTEST, str(tests)))
    assert _run(checks, monkeypatch, part) == 1
    lines = (checks.OUT / "findings.jsonl").read_text().splitlines()
    by_name = {one["what"]: one for one in map(json.loads, lines) if one["part"] == "tests"}
    assert by_name["test_good"]["outcome"] == "passed"
    assert by_name["test_bad"]["outcome"] == "failed"
    assert by_name["test_not"]["outcome"] == "not run"
    assert by_name["test_not"]["values"] == {"reason": "no device"}
    assert by_name["the whole part"]["outcome"] == "failed"


def test_a_part_that_is_not_there(checks: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert checks.main(["kernel"]) == 1
    assert capsys.readouterr().out.startswith("no part kernel: choose of imports, kernels, ")


# What becomes of the findings


def _line(part: str, what: str, outcome: str = "passed", **values: object) -> str:
    return json.dumps(
        {"part": part, "what": what, "outcome": outcome, "seconds": 1.5, "values": values}
    )


MACHINE = _line("imports", "machine", device="H200", cuda="13.0")
DEBT = """\
| What | Why | How |
| --- | --- | --- |
| The kernels | x | `test_a`, `test_b` |
| Graphs | x | `test_c` |
| The engine | x | `device:engine` |
| By hand | x | two GPUs |

- `test_a` in a list is no row.
"""


def _findings(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "findings.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_page_of_figures(tmp_path: Path) -> None:
    lines = (
        MACHINE,
        _line("kernels", "test_a[0]"),
        _line("kernels", "test_b", "failed", reason="assert 1"),
        _line("kernels", "the whole part", "failed"),
        _line("sweep", "64 x 8192", microseconds=12.3456),
        _line("graphs", "the whole part", "not run", reason="needs a CUDA device"),
    )
    text = page(read_findings(_findings(tmp_path, *lines)))
    assert "device H200, cuda 13.0" in text
    assert "| kernels | 1 | 2 | 0 | 1.5 |" in text
    assert "- kernels, test_b: failed: reason assert 1" in text
    assert "- graphs, the whole part: not run: reason needs a CUDA device" in text
    assert "- sweep, 64 x 8192: microseconds 12.35" in text


def test_what_was_shown_leaves_the_debt(tmp_path: Path) -> None:
    lines = (
        MACHINE,
        _line("kernels", "test_a[0]"),
        _line("kernels", "test_a[1]"),
        _line("kernels", "test_b"),
        _line("kernels", "test_c[0]"),
        _line("kernels", "test_c[1]", "failed"),
        _line("engine", "tiny, none: tokens"),
    )
    kept, left = settle_debt(DEBT, read_findings(_findings(tmp_path, *lines)))
    assert left == ["The kernels", "The engine"]
    assert kept == DEBT.replace("| The kernels | x | `test_a`, `test_b` |\n", "").replace(
        "| The engine | x | `device:engine` |\n", ""
    )


def test_what_was_not_run_stays(tmp_path: Path) -> None:
    lines = (MACHINE, _line("kernels", "test_a"), _line("kernels", "test_b", "not run"))
    assert settle_debt(DEBT, read_findings(_findings(tmp_path, *lines))) == (DEBT, [])


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("{",), "line 1 is not JSON"),
        (('{"part": 1}',), "line 1"),
        ((_line("a", "b", "fine"),), "line 1: the outcome fine"),
        ((_line("a", "b"),), "does not say on which machine"),
    ],
)
def test_files_that_are_no_findings(tmp_path: Path, lines: tuple[str, ...], says: str) -> None:
    with pytest.raises(Fault, match=says):
        read_findings(_findings(tmp_path, *lines))
    with pytest.raises(Fault, match="cannot be read"):
        read_findings(tmp_path / "none")


# The bundle itself; that it imports what it has to is its own first part


def test_the_same_files_pack_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day, name in enumerate(("a", "b")):
        monkeypatch.setattr(time, "time", lambda day=day: 1_700_000_000.0 + 86400 * day)
        folder = tmp_path / name / "x"
        (folder / "__pycache__").mkdir(parents=True)
        (folder / "one.py").write_text("1")
        (folder / "__pycache__" / "one.pyc").write_text(name)
        bundle._pack(tmp_path / name, tmp_path / f"{name}.tar.gz", 1_700_000_000)
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        assert archive.getnames() == ["x", "x/one.py"]


def test_a_bundle_that_weighs_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large").write_bytes(bytes(3 << 20))
    assert bundle._weigh(tmp_path) == 3 << 20
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same").write_bytes(b"x")
    assert bundle._weigh(tmp_path) == (3 << 20) + 2
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "b")
    monkeypatch.setattr(bundle, "LIMIT", 2 << 20)
    with pytest.raises(Fault, match=r"3\.0 MiB, more than 2") as caught:
        bundle._weigh(tmp_path)
    assert caught.value.details == ("large: 3.0 MiB",)
