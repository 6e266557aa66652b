"""The command line: which verbs there are, and how a run ends.

A verb is a `Verb` in `VERBS`: its name, one line of help, a function that
declares its options and one that runs it. Its module is imported only when it
is asked for, so that no verb pays for the libraries of another.

Whatever a user can cause or fix ends in one line on standard error and exit
status 1; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci import CHECKOUT
from ci.core.content import show
from ci.core.errors import Fault
from ci.core.layout import Layout

INTERRUPTED = 130
"""What a shell reports for a command that ended on Ctrl-C."""


def _no_options(parser: argparse.ArgumentParser) -> None:
    """A verb that takes nothing."""


@dataclass(frozen=True)
class Verb:
    """One thing the tooling does.

    Attributes:
        run: runs it and returns the exit status.
        options: adds the verb's options to its parser.
        passes_on: arguments that the parser does not know are meant for another
            program (pytest); `run` finds them in `args.rest`.
        all_lines: it can be done for every line in turn (`--all-lines`).
    """

    name: str
    help: str
    run: Callable[[Layout, argparse.Namespace], int]
    options: Callable[[argparse.ArgumentParser], None] = _no_options
    passes_on: bool = False
    all_lines: bool = False

    @property
    def command(self) -> str:
        """What a user types in front of its options."""
        return f"nox -s {self.name} --"


def _module_verb(name: str, help: str, *, passes_on: bool = False, all_lines: bool = False) -> Verb:
    """The verb that `options` and `run` of ci/verbs/NAME.py make; imported when it is used."""

    def options(parser: argparse.ArgumentParser) -> None:
        importlib.import_module(f"ci.verbs.{name}").options(parser)

    def run(layout: Layout, args: argparse.Namespace) -> int:
        status: int = importlib.import_module(f"ci.verbs.{name}").run(layout, args)
        return status

    return Verb(name, help, run, options, passes_on, all_lines)


# One `Verb` a line, in the order in which a user meets them.
VERBS: tuple[Verb, ...] = (
    _module_verb("apply", "compose the series on the pinned vLLM and check it out", all_lines=True),
    _module_verb("build", "build the composed series as wheels in dist/", all_lines=True),
    _module_verb(
        "test",
        "install a line's wheel, verify it and run the tests",
        passes_on=True,
        all_lines=True,
    ),
    _module_verb(
        "lint", "check the tooling, the series and what it changes in vLLM", all_lines=True
    ),
    _module_verb("verify", "check a wheel or an installed vLLM against its series", all_lines=True),
    _module_verb("baseline", "record upstream's tests on the pristine pin"),
    _module_verb("bench", "run a benchmark in the test environment", passes_on=True),
    _module_verb("bundle", "pack the device checks for a machine with a GPU"),
    _module_verb("refresh", "take edits of the work tree into the series"),
    _module_verb("upstream", "make a topic ready to be sent to vLLM"),
    _module_verb("prefixes", "try every prefix, topic and declared need by itself", all_lines=True),
    _module_verb("status", "show where everything stands, on one screen", all_lines=True),
    _module_verb("roll", "try the series on another vLLM, and move it there"),
    _module_verb("port", "try a topic of a line on another line, and carry it there"),
)


class _Parser(argparse.ArgumentParser):
    """argparse, with the one-line message and exit status of every other fault."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise Fault(message, todo=f"see `{self.prog} --help`")


def _parser(verbs: Sequence[Verb], argv: Sequence[str]) -> argparse.ArgumentParser:
    """A parser of all verbs, with the options of the one that is asked for."""
    parser = _Parser(prog="python -m ci", description="Pin, compose, build, test and refresh.")
    below = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in verbs:
        its = below.add_parser(verb.name, prog=verb.command, help=verb.help, description=verb.help)
        if verb.name in argv[:1]:
            which = its.add_mutually_exclusive_group()
            which.add_argument("--line", metavar="NAME", help="the line that is meant (also LINE)")
            if verb.all_lines:
                which.add_argument("--all-lines", action="store_true", help="every line in turn")
            verb.options(its)
    return parser


def _parse(argv: Sequence[str], verbs: Sequence[Verb]) -> tuple[Verb, argparse.Namespace]:
    args, rest = _parser(verbs, argv).parse_known_args(argv)
    verb = next(verb for verb in verbs if verb.name == args.verb)
    if rest and not verb.passes_on:
        raise Fault(
            f"{verb.name} does not know {' '.join(rest)}",
            todo=f"see `{verb.command} --help`",
        )
    args.rest = rest
    return verb, args


# What the user can fix on the machine, by errno: what is wrong, and what to do.
_FIXABLE = {
    errno.ENOSPC: ("no space left on the disk", "free some space and run it again"),
    errno.EDQUOT: ("the disk quota is used up", "free some space and run it again"),
    errno.EACCES: ("permission denied", "make it readable and writable for yourself"),
    errno.EPERM: ("not permitted", "make it readable and writable for yourself"),
    errno.EROFS: ("the file system is read-only", "work in a checkout that can be written"),
    errno.ENAMETOOLONG: ("the path is too long", "check out the project in a shorter path"),
    errno.EEXIST: ("something else is in its place", "move it away and run it again"),
    errno.ENOTDIR: ("a file is where a folder should be", "move it away and run it again"),
    errno.EISDIR: ("a folder is where a file should be", "move it away and run it again"),
    errno.ENOTEMPTY: ("a folder is in its place", "move it away and run it again"),
    errno.EMFILE: ("too many open files", "raise the limit (ulimit -n) and run it again"),
}
_UNREACHABLE = {
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ETIMEDOUT,
}


def _as_fault(error: OSError) -> Fault | None:
    """The fault that an operating system error stands for; None for a bug."""
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
        # copytree collects what it could not copy as texts; the first one decides.
        _, target, why = error.args[0][0]
        number = re.match(r"\[Errno (\d+)\]", str(why))
        return _as_fault(OSError(int(number[1]), str(why), target)) if number else None
    if error.errno in _FIXABLE:
        what, todo = _FIXABLE[error.errno]
        where = f": {_at_fault(error)}" if error.filename else ""
        return Fault(what + where, todo=todo)
    if error.errno in _UNREACHABLE:
        return Fault(f"no network: {error.strerror}", todo="check the connection and run it again")
    return None


def _at_fault(error: OSError) -> str:
    """The file that is in the way, which need not be the one that the system names first."""
    # Of a move, the source is a draft of ours; where it goes is what is not as it should be.
    path = Path(os.fsdecode(error.filename2 or error.filename))
    if error.errno == errno.ENOTDIR:
        steps = (*reversed(path.parents), path)
        path = next((step for step in steps if step.exists() and not step.is_dir()), path)
    return show(os.fsencode(path))


def main(argv: Sequence[str], verbs: Sequence[Verb] = VERBS, root: Path = CHECKOUT) -> int:
    """Run one verb on the checkout at `root` and hand back the exit status.

    By default it is the one that the running tooling is part of, wherever it
    is run from: a checkout inside another one never acts on the outer.
    """

    def run() -> int:
        verb, args = _parse(argv, verbs)
        # Not at the top: a bare interpreter imports this module before it has the libraries.
        from ci.core import lines
        from ci.core.runlock import alone
        from ci.series import write

        if write.cut_short(root):
            with alone(root / "build", verb.name):
                write.recover(root)
        if getattr(args, "all_lines", False):
            return _run_all(verb, args, lines.every(root))
        args.first_line = True
        return verb.run(lines.choose(root, args.line), args)

    return guarded(run)


def _run_all(verb: Verb, args: argparse.Namespace, layouts: Sequence[Layout]) -> int:
    """Run a verb for every line; one that fails keeps none of the others back."""
    worst = 0
    for layout in layouts:
        print(f"== line {layout.line}", flush=True)
        # What concerns the checkout as a whole is done once, with the first.
        args.first_line = layout is layouts[0]
        status = guarded(lambda at=layout: verb.run(at, args))  # type: ignore[misc]
        if status == INTERRUPTED:
            return status
        worst = max(worst, status)
    return worst


def guarded(run: Callable[[], int]) -> int:
    """Call `run`; report whatever a user can fix in one line instead of a traceback."""
    try:
        return run()
    except KeyboardInterrupt:
        print("stopped; the next run starts clean", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output (a pager, head) has seen enough.
        sys.stderr.close()
        return 1
    except Fault as fault:
        return _report(fault)
    except OSError as error:
        known = _as_fault(error)
        if known is None:
            raise
        return _report(known)


def _report(fault: Fault) -> int:
    sys.stdout.flush()
    print(f"error: {fault}", file=sys.stderr)
    return 1
