"""`nox -s upstream`: a topic as a branch, mail files and the text of a pull request."""

from __future__ import annotations

import argparse
import shlex
import shutil
from pathlib import Path

from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.core.progress import say
from ci.core.runlock import alone
from ci.git.repo import Identity, user_identity
from ci.git.store import open_store
from ci.pinned.fetch import source_word
from ci.pinned.pin import load_pin
from ci.roll.target import Targets
from ci.send.topic import (
    Exported,
    check_exported,
    commands,
    mail,
    make,
    publish,
    range_diff,
    topic_body,
)
from ci.series import resolutions
from ci.series.model import read_files
from ci.worktree.tree import WorkTree


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("topic", help="the topic to send")
    parser.add_argument(
        "--onto", metavar="REF", help="stand on this tag, branch or commit of --source, not the pin"
    )
    parser.add_argument("--source", type=source_word, help="a git clone or URL of vLLM")
    parser.add_argument(
        "--fork", metavar="URL", help="your fork, for the printed commands; default: remote `fork`"
    )
    parser.add_argument(
        "--unchecked", action="store_true", help="leave out vLLM's own checks (ruff, mypy, …)"
    )


def _signer(layout: Layout) -> Identity:
    """The user, from their own git settings.

    Raises:
        Fault: git knows no name or address of theirs.
    """
    who = user_identity(layout.root)
    if who is None:
        raise Fault(
            "git knows no name and address of yours, and vLLM takes only signed-off commits",
            todo="git config --global user.name NAME; git config --global user.email ADDRESS",
        )
    if who.email.endswith(".invalid") or "@" not in who.email:
        raise Fault(
            f"{who.email} is no address that vLLM's DCO check would take",
            todo="git config --global user.email ADDRESS",
        )
    return who


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb."""
    with alone(layout.shared, "upstream"):
        who = _signer(layout)
        tree = WorkTree(layout.work_tree, layout.store)
        rolls, pin = layout.build / "roll", load_pin(layout.pin)
        targets = Targets(rolls, layout.downloads, open_store(layout.store), pin)
        kept = resolutions.load(layout.patches / "resolutions")
        files = read_files(layout)
        exported = make(targets, files, kept, args.topic, args.onto, args.source, who)
        name = exported.topic.name
        body = topic_body(exported, layout.patches / "topics" / f"{name}.md")
        check_exported(exported, layout.build, thorough=not args.unchecked)
        before = publish(exported, tree, layout.line)
        folder = layout.build / "upstream" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "body.md").write_text(body, encoding="utf-8")
        mail(exported, folder)
    _tell(exported, tree, folder, before)
    if exported.pushable:
        where = shlex.quote(str(tree.root.relative_to(layout.root)))
        text = str((folder / "body.md").relative_to(layout.root))
        print("\nto send it:")
        for line in commands(exported, tree.repo, where, text, args.fork):
            print(f"  {line}")
    return 0


def _tell(exported: Exported, tree: WorkTree, folder: Path, before: str | None) -> None:
    """What was made, and what keeps it from being sent."""
    print(f"{exported.branch}: {exported.head[:12]} in {tree.root}")
    needed = [one for one in exported.planned if one.patch.name not in exported.own]
    for one in exported.planned:
        print(f"{'  (needed) ' if one in needed else '  '}{one.parsed.subject}")
    print(f"mail files and the pull request's text: {folder}")
    print("(git am --keep-non-patch keeps the prefixes in their subjects)")
    if before is not None and before != exported.head:
        print(f"\nsince the last export:\n{range_diff(exported, before)}")
    if needed:
        say(f"{len(needed)} of its commits belong to topics that it needs: send those first")
    if not exported.pushable:
        say(
            "the branch stands on the sdist's files, not on a commit of vLLM: to push it, make it "
            "again with --source CLONE (and --onto main)"
        )
