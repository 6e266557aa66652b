"""`nox -s upstream`: a topic as a branch, mail files and the text of a pull request.

Everything is made here and nothing is sent: the commands that would push the
branch and open the pull request are printed. The commits are the user's, with
their sign-off, as vLLM's DCO check wants it.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from ci import compose as composing
from ci import lint, patchfile, prbody, resolutions, targets, worktree
from ci.apply import open_base
from ci.base import Kind, import_base
from ci.closure import subset, topic_closure, topic_named, topic_patches
from ci.compose import BaseTree, Commit, Planned
from ci.errors import Fault, listed
from ci.git import Git, Identity, user_identity
from ci.layout import Layout
from ci.messages import Message
from ci.patchfile import PatchFile, file_name
from ci.pin import load_pin
from ci.progress import say
from ci.rolling import roll
from ci.runlock import alone
from ci.series import SeriesFiles, Topic, read_files
from ci.sources import source_word
from ci.trees import changes, file_diffs, read_contents, with_binaries

CATEGORIES = (
    "Bugfix", "CI/Build", "Doc", "Model", "Frontend", "Kernel", "Core", "Hardware", "Misc",
)  # fmt: skip
"""The kinds of pull requests that vLLM's contributing guide names."""

_TITLE = re.compile(r"((?:\[[A-Za-z0-9][^\[\]]*\])+) \S.*")
_SPDX = re.compile(rb"^# SPDX-License-Identifier: Apache-2\.0$", re.MULTILINE)
_PUBLISHED = "refs/upstream/"
_PREVIOUS = "refs/upstream-before/"
_REPOSITORY = "vllm-project/vllm"


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


@dataclass(frozen=True)
class Exported:
    """A topic, as commits of the user's on a base.

    Attributes:
        own: the names of the topic's own patches; the others belong to topics
            that it needs.
        pushable: the base is a commit of vLLM's own history.
    """

    topic: Topic
    base: BaseTree
    planned: tuple[Planned, ...]
    commits: tuple[Commit, ...]
    own: frozenset[str]
    pushable: bool

    @property
    def branch(self) -> str:
        return f"upstream/{self.topic.name}"

    @property
    def head(self) -> str:
        return self.commits[-1].id


# -- who and whether ----------------------------------------------------------


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


def check_title(title: str, what: str, known: Sequence[str] = ()) -> None:
    """Refuse a title without a prefix in brackets.

    Args:
        known: prefixes of which one has to be there; with none, any will do.

    Raises:
        Fault: says what is wanted.
    """
    match = _TITLE.fullmatch(title)
    words = re.findall(r"\[([^\[\]]*)\]", match[1]) if match else []
    if not words or (known and not set(words) & set(known)):
        listed = " ".join(f"[{word}]" for word in known or CATEGORIES)
        raise Fault(
            f"{what} `{title}` has no prefix that vLLM knows", todo=f"start it with one of {listed}"
        )


# -- making the commits -------------------------------------------------------


def _planned(
    layout: Layout, files: SeriesFiles, topic: str, onto: str | None, source: str | None
) -> tuple[Git, BaseTree, tuple[Planned, ...], bool]:
    """The topic's closure on the pin, or on another commit."""
    pin = load_pin(layout.pin)
    part = subset(files, topic_closure(files.series, topic))
    if onto is None:
        store, base = open_base(layout, source)
        pushable = import_base(layout, pin).kind is Kind.GIT
        return store, base, tuple(composing.plan(store, base, part)), pushable
    store, old = open_base(layout, None)
    if source is None:
        raise Fault("--onto needs a git source", todo="add --source CLONE")
    target = targets.find(layout, store, pin, onto, source)
    new = composing.read_base(store, target.commit, target.tree)
    rolled = roll(store, old, new, part, (pin.version, onto), resolutions.load(layout))
    if rolled.report.open:
        raise Fault(
            f"{topic} does not fit {onto} as it is",
            todo=f"solve it first: `nox -s roll -- {onto} --source {source}`",
            details=tuple(f"{p.file}: {p.outcome.value}" for p in rolled.report.open),
        )
    return store, new, rolled.planned, target.sdist is None


def _signed(planned: Planned, who: Identity) -> Planned:
    """The patch as the user's own, signed off."""
    message = planned.parsed.message
    line = f"Signed-off-by: {who.name} <{who.email}>"
    body = f"{message.body}\n\n{line}" if message.body else line
    parsed = replace(
        planned.parsed,
        message=Message(message.subject, body),
        author=f"{who.name} <{who.email}>",
    )
    return replace(planned, parsed=parsed)


def make(layout: Layout, args: argparse.Namespace, who: Identity) -> tuple[Git, Exported]:
    """Make the commits in the store; nothing refers to them yet.

    Raises:
        Fault: no such topic, a title without a prefix, or it does not fit.
    """
    files = read_files(layout)
    topic = topic_named(files.series, args.topic)
    own = topic_patches(files.series, topic.name)
    if not own:
        raise Fault(f"the topic {topic.name} has no patches", todo="there is nothing to send")
    check_title(topic.title, f"the title of {topic.name}", CATEGORIES)
    store, base, planned, pushable = _planned(layout, files, topic.name, args.onto, args.source)
    names = frozenset(patch.name for patch in own)
    if not any(one.patch.name in names for one in planned):
        raise Fault(f"{topic.name} is upstream already", todo="there is nothing to send")
    signed = tuple(_signed(one, who) for one in planned)
    for one in signed:
        check_title(one.parsed.subject, "the commit")
    commits = composing.write(store, base, signed)
    return store, Exported(topic, base, signed, commits, names, pushable)


# -- checking -----------------------------------------------------------------


def changed_files(store: Git, exported: Exported) -> dict[str, bytes]:
    """Every file that the topic's commits add or change, with its content."""
    raws = changes(store, exported.base.tree, exported.commits[-1].tree)
    entries = {raw.path: raw.new for raw in raws if raw.new is not None}
    contents = read_contents(store, entries.values())
    return {
        path.decode("utf-8", "surrogateescape"): contents[entry].data
        for path, entry in entries.items()
    }


def check_spdx(files: dict[str, bytes]) -> None:
    """Refuse a Python file without vLLM's licence header.

    Raises:
        Fault: lists them.
    """
    bare = [
        path
        for path, data in files.items()
        if path.endswith(".py") and data.strip() and not _SPDX.search(data[:500])
    ]
    if bare:
        raise Fault(
            f"{len(bare)} new files have no SPDX header",
            todo="start them with `# SPDX-License-Identifier: Apache-2.0`",
            details=listed(bare),
        )


def _check(layout: Layout, store: Git, exported: Exported, *, thorough: bool) -> None:
    files = changed_files(store, exported)
    base = exported.base.entries
    check_spdx({path: data for path, data in files.items() if os.fsencode(path) not in base})
    if thorough:
        failed = lint.check_tree(layout, store, exported.commits[-1].tree, tuple(files))
        if failed:
            raise Fault(
                f"vLLM's own checks fail on {exported.topic.name}: {', '.join(failed)}",
                todo="mend what they name above",
            )


# -- publishing ---------------------------------------------------------------


def _publish(layout: Layout, store: Git, exported: Exported) -> str | None:
    """Set the branch in build/vllm; the head of the export before, if there is one.

    Raises:
        Fault: there is no work tree, the branch is checked out, or has commits
            that are not ours.
    """
    tree = worktree.WorkTree.of(layout)
    state = tree.state()
    if state is None:
        raise Fault("there is no work tree to put the branch in", todo="run `nox -s apply`")
    ref = f"refs/heads/{exported.branch}"
    if state.branch == ref:
        raise Fault(
            f"{exported.branch} is checked out in {tree.root}",
            todo="git switch series, there",
        )
    now = tree.repo.resolve(ref)
    before = store.resolve(_PUBLISHED + exported.topic.name)
    if now not in (None, before, exported.head):
        raise Fault(
            f"{exported.branch} in {tree.root} has commits of yours",
            todo=f"give them another name: git branch -m {exported.branch} NAME, there",
        )
    tree.share_boundary()
    if before not in (None, exported.head):
        store.run("update-ref", _PREVIOUS + exported.topic.name, str(before))
    store.run("update-ref", _PUBLISHED + exported.topic.name, exported.head)
    tree.repo.run("update-ref", ref, exported.head)
    return store.resolve(_PREVIOUS + exported.topic.name)


def _range_diff(store: Git, exported: Exported, before: str) -> str:
    """What changed since the last export that was another."""
    old_base = store.text("rev-list", "--max-parents=0", before)
    out = store.run(
        "range-diff",
        "--no-color",
        f"{old_base}..{before}",
        f"{exported.base.commit}..{exported.head}",
    )
    return out.decode("utf-8", "replace")


def _mail(store: Git, exported: Exported, folder: Path) -> list[Path]:
    """The topic's own commits as files for `git am`."""
    trees = [exported.base.tree, *(commit.tree for commit in exported.commits)]
    pairs = list(pairwise(trees))
    written: list[Path] = []
    for one, diffs in zip(exported.planned, file_diffs(store, pairs), strict=True):
        if one.patch.name not in exported.own:
            continue
        parsed = one.parsed
        data = patchfile.render(
            PatchFile(
                parsed.message, parsed.author, parsed.date, tuple(with_binaries(store, diffs))
            )
        )
        written.append(folder / file_name(len(written) + 1, parsed.subject))
        written[-1].write_bytes(data)
    return written


def _body(layout: Layout, store: Git, exported: Exported) -> str:
    blob = store.resolve(f"{exported.base.commit}:{prbody.TEMPLATE}")
    if blob is None:
        raise Fault(f"this vLLM has no {prbody.TEMPLATE}", todo="stand on another with --onto")
    texts = prbody.sections(layout, exported.topic.name)
    return prbody.fill(store.blob(blob).decode("utf-8"), texts)


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
        f"gh pr create --repo {_REPOSITORY} --base main --head {head} "
        f"--title {shlex.quote(exported.topic.title)} "
        f"--body-file {shlex.quote(str(body.relative_to(layout.root)))}"
    )
    return lines


# -- the verb -----------------------------------------------------------------


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb."""
    with alone(layout, "upstream"):
        who = _signer(layout)
        store, exported = make(layout, args, who)
        body = _body(layout, store, exported)
        _check(layout, store, exported, thorough=not args.unchecked)
        before = _publish(layout, store, exported)
        folder = layout.build / "upstream" / exported.topic.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "body.md").write_text(body, encoding="utf-8")
        mails = _mail(store, exported, folder)
        _tell(layout, exported, mails)
        if before not in (None, exported.head):
            assert before is not None
            print(f"\nsince the last export:\n{_range_diff(store, exported, before)}")
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
