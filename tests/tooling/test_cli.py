"""How the command line ends: one line, the right status, no traceback for wrong use."""

from __future__ import annotations

import argparse
import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ci import cli
from ci.core import files
from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.series.model import Patch, Series, Topic, dump_series
from ci.wheel.verify import open_files
from tests.tooling.projects import LINE, Project, text


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    layout = Layout(tmp_path, LINE)
    layout.patches.mkdir(parents=True)
    layout.pin.write_text("")
    (tmp_path / "patches" / "lines.toml").write_text(f'default = "{LINE}"\n')
    return tmp_path


def _run(
    checkout: Path,
    act: Callable[[Layout, argparse.Namespace], int],
    *words: str,
    passes_on: bool = False,
) -> int:
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--source")

    verbs = (cli.Verb("try", "a verb for tests", act, options, passes_on),)
    return cli.main(["try", *words], verbs, checkout)


def _raise(error: BaseException) -> Callable[[Layout, argparse.Namespace], int]:
    def act(layout: Layout, args: argparse.Namespace) -> int:
        raise error

    return act


def test_status_of_a_verb_is_the_exit_status(checkout: Path) -> None:
    assert _run(checkout, lambda layout, args: 0) == 0
    assert _run(checkout, lambda layout, args: 3) == 3


def test_a_verb_gets_the_checkout_and_its_options(checkout: Path) -> None:
    seen: list[tuple[Path, str]] = []

    def act(layout: Layout, args: argparse.Namespace) -> int:
        seen.append((layout.root, args.source))
        return 0

    verbs = (cli.Verb("try", "h", act, lambda p: p.add_argument("--source") and None),)
    assert cli.main(["try", "--source", "x"], verbs, checkout) == 0
    assert seen == [(checkout, "x")]


def test_fault_is_one_line_with_details_below(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = Fault("pin.toml has no [sdist]", todo="add it", details=("a", "b"))
    assert _run(checkout, _raise(fault)) == 1
    assert capsys.readouterr().err == "error: pin.toml has no [sdist]: add it\n    a\n    b\n"


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "no space left on the disk: /some/file: free"),
        (errno.EACCES, "permission denied: /some/file"),
        (errno.EROFS, "read-only: /some/file"),
        (errno.ECONNREFUSED, "no network"),
    ],
)
def test_machine_trouble_is_one_line(
    checkout: Path, capsys: pytest.CaptureFixture[str], number: int, says: str
) -> None:
    assert _run(checkout, _raise(OSError(number, os.strerror(number), "/some/file"))) == 1
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("build", "file"),
        ("build", "link"),
        ("build/store.git", "file"),
        ("build/downloads", "file"),
        ("build/run.lock", "folder"),
        ("build/run.json", "folder"),
        ("overlay", "file"),
        ("overlay/L/vllm/pipe", "pipe"),
        ("patches/L/0001-x.patch", "folder"),
        ("patches/L/0001-x.patch", "pipe"),
        ("patches/L/series.toml", "pipe"),
        ("patches/L/series.lock", "folder"),
        ("patches/L/pin.toml", "pipe"),
        ("patches/L/pin.toml", "folder"),
        ("patches/L/pin.toml", "link"),
    ],
)
def test_something_else_in_the_place_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, what: str
) -> None:
    project = Project.make(tmp_path / "project", {"vllm/a.py": text("a")})
    patch = Patch(
        "0001-x.patch", "all", overlay=("vllm/pipe",) if path == "overlay/L/vllm/pipe" else ()
    )
    if "0001" in path or "pipe" in path:
        topics = (Topic("all", "Everything"),)
        project.layout.series.write_bytes(dump_series(Series(topics, (patch,))))
        (project.layout.patches / patch.file).write_bytes(b"")
    target = project.root / path
    if target.is_dir():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    make = {"folder": target.mkdir, "pipe": lambda: os.mkfifo(target)}
    make |= {"file": target.touch, "link": lambda: target.symlink_to("nowhere")}
    make[what]()
    capsys.readouterr()
    assert cli.main(["apply"], root=project.root) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("error: ")
    assert path in told


def test_a_folder_that_could_not_be_copied(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "from").mkdir()
    (checkout / "from" / "file").touch()

    def copying(number: int) -> Callable[[Layout, argparse.Namespace], int]:
        def fail(source: str, target: str) -> None:
            raise OSError(number, os.strerror(number))

        def act(layout: Layout, args: argparse.Namespace) -> int:
            shutil.copytree(checkout / "from", checkout / f"to-{number}", copy_function=fail)
            return 0

        return act

    assert _run(checkout, copying(errno.ENOSPC)) == 1
    told = capsys.readouterr().err
    where = checkout / f"to-{errno.ENOSPC}" / "file"
    assert told.startswith(f"error: no space left on the disk: {where}: free some space")
    assert told.count("\n") == 1
    with pytest.raises(shutil.Error):
        _run(checkout, copying(errno.EINVAL))


def test_a_wheel_below_a_file(checkout: Path) -> None:
    with pytest.raises(Fault, match=r"pin\.toml/x does not exist"):
        open_files(checkout / "patches" / LINE / "pin.toml" / "x")


def test_a_bug_keeps_its_traceback(checkout: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        _run(checkout, lambda layout, args: 1 // 0)
    with pytest.raises(FileNotFoundError):
        _run(checkout, _raise(FileNotFoundError(errno.ENOENT, "gone", "x")))


def test_interrupt_is_one_line_and_130(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(checkout, _raise(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err.count("\n") == 1


def test_unknown_words(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(checkout, lambda layout, args: 0, "--nonsense") == 1
    assert "--nonsense" in capsys.readouterr().err
    assert cli.main(["nonsense"], (), checkout) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert "nonsense" in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["apply", "--source"], "see `nox -s apply -- --help`"),
        (["roll", "--accept", "--abort"], "see `nox -s roll -- --help`"),
        (["test", "--at-once", "x"], "see `nox -s test -- --help`"),
        (["status", "--nonsense"], "see `nox -s status -- --help`"),
        (["nonsense"], "see `python -m ci --help`"),
    ],
)
def test_where_help_is(
    checkout: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert cli.main(words, root=checkout) == 1
    assert says in capsys.readouterr().err


def test_every_session_is_a_verb_and_every_verb_a_session() -> None:
    noxfile = (Path(__file__).resolve().parents[2] / "noxfile.py").read_text()
    sessions = set(re.findall(r'_ci\(session, "([a-z-]+)"\)', noxfile))
    assert sessions == {verb.name for verb in cli.VERBS}


def test_words_for_another_program_are_passed_on(checkout: Path) -> None:
    seen: list[list[str]] = []

    def act(layout: Layout, args: argparse.Namespace) -> int:
        seen.append(args.rest)
        return 0

    assert _run(checkout, act, "-k", "name", "-x", passes_on=True) == 0
    assert seen == [["-k", "name", "-x"]]


def test_the_checkout_is_the_one_of_the_running_tooling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from inside another checkout, and from outside of any."""
    outer = Project.make(tmp_path / "outer", {"vllm/a.py": text("a")})
    seen: list[Path] = []

    def act(layout: Layout, args: argparse.Namespace) -> int:
        seen.append(layout.root)
        return 0

    for place in (outer.root, tmp_path):
        monkeypatch.chdir(place)
        assert cli.main(["try"], (cli.Verb("try", "h", act),)) == 0
    assert seen == [Path(__file__).resolve().parents[2]] * 2


def test_without_a_pin_nothing_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not on the project that this one lies in either."""
    outer = Project.make(tmp_path / "outer", {"vllm/a.py": text("a")})
    inner = Project.make(outer.root / "inner", {"vllm/a.py": text("a")})
    before = outer.files()
    inner.layout.pin.unlink()
    for verb in ("apply", "refresh", "status", "verify"):
        assert cli.main([verb], root=inner.root) == 1
        told = capsys.readouterr().err.splitlines()[-1]
        assert told.startswith("error: patches/L has no pin.toml, so it is no line: restore it")
    assert outer.files() == before
    assert not outer.layout.store.exists()


def test_the_file_that_is_in_the_way_is_named(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft, folder, full = checkout / "draft", checkout / "folder", checkout / "full" / "x"
    draft.write_text("new")
    folder.mkdir()
    full.mkdir(parents=True)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: draft.replace(folder), f"a folder is where a file should be: {folder}: move"),
        (lambda: folder.rename(full.parent), f"a folder is in its place: {full.parent}: move"),
        (lambda: folder.rename(draft), f"a file is where a folder should be: {draft}: move"),
        (lambda: (draft / "a" / "b").mkdir(parents=True), f"folder should be: {draft}: move"),
        (lambda: files.write_new(os.fsencode(draft), text()), f"in its place: {draft}: move"),
    ]
    for fail, says in cases:

        def act(layout: Layout, args: argparse.Namespace, fail: Callable[[], object] = fail) -> int:
            return 1 if fail() else 0

        assert _run(checkout, act) == 1
        assert says in capsys.readouterr().err
