"""`nox -s upstream`: a topic as a branch, mail files and the text of a pull request."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.core.progress import say
from ci.core.runlock import alone
from ci.git.repo import Git, Identity, user_identity
from ci.pinned.fetch import source_word
from ci.send.topic import (
    REPOSITORY,
    Exported,
    check_exported,
    mail,
    make,
    publish,
    range_diff,
    topic_body,
)


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


def commands(layout: Layout, exported: Exported, body: Path, fork: str | None) -> list[str]:
    """What to run to send it; nothing of it is run here."""
    where = shlex.quote(str(layout.work_tree.relative_to(layout.root)))
    lines = []
    repo = Git(layout.work_tree / ".git")
    known = repo.attempt("config", "--get", "remote.fork.url").out.decode().strip()
    if fork and fork != known:
        verb = "set-url" if known else "add"
        lines.append(f"git -C {where} remote {verb} fork {shlex.quote(fork)}")
    elif not known:
        lines.append(f"git -C {where} remote add fork URL-OF-YOUR-FORK")
    owner = re.search(r"[:/]([^/:]+)/[^/]+?(?:\.git)?/?$", fork or known)
    head = f"{owner[1]}:{exported.branch}" if owner else f"YOUR-NAME:{exported.branch}"
    lines.append(f"git -C {where} push --force-with-lease fork {exported.branch}")
    lines.append(
        f"gh pr create --repo {REPOSITORY} --base main --head {head} "
        f"--title {shlex.quote(exported.topic.title)} "
        f"--body-file {shlex.quote(str(body.relative_to(layout.root)))}"
    )
    return lines


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb."""
    with alone(layout.build, "upstream"):
        who = _signer(layout)
        store, exported = make(layout, args.topic, args.onto, args.source, who)
        body = topic_body(layout, store, exported)
        check_exported(layout, store, exported, thorough=not args.unchecked)
        before = publish(layout, store, exported)
        folder = layout.build / "upstream" / exported.topic.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "body.md").write_text(body, encoding="utf-8")
        mails = mail(store, exported, folder)
        _tell(layout, exported, mails)
        if before not in (None, exported.head):
            assert before is not None
            print(f"\nsince the last export:\n{range_diff(store, exported, before)}")
        _tell_commands(layout, exported, folder / "body.md", args.fork)
    return 0


def _tell(layout: Layout, exported: Exported, mails: Sequence[Path]) -> None:
    print(f"{exported.branch}: {exported.head[:12]} in {layout.work_tree}")
    for one in exported.planned:
        mark = "  " if one.patch.name in exported.own else "  (needed) "
        print(f"{mark}{one.parsed.subject}")
    print(f"mail files and the pull request's text: {mails[0].parent}")
    print("(git am --keep-non-patch keeps the prefixes in their subjects)")


def _tell_commands(layout: Layout, exported: Exported, body: Path, fork: str | None) -> None:
    needed = sum(one.patch.name not in exported.own for one in exported.planned)
    if needed:
        say(f"{needed} of its commits belong to topics that it needs: send those first")
    if not exported.pushable:
        say(
            "the branch stands on the sdist's files, not on a commit of vLLM: to push it, make it "
            "again with --source CLONE (and --onto main)"
        )
        return
    print("\nto send it:")
    for line in commands(layout, exported, body, fork):
        print(f"  {line}")
