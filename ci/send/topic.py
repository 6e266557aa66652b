"""A topic as commits of the user's: made, checked and put into a branch.

Everything is made here and nothing is sent: the commands that would push the
branch and open the pull request are printed. The commits are the user's, with
their sign-off, as vLLM's DCO check wants it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.core.errors import Fault, listed
from ci.git.repo import Git, Identity
from ci.git.trees import changes, read_contents
from ci.pinned.base import Kind, import_base
from ci.roll.target import Targets
from ci.roll.tried import try_on
from ci.send import body as prbody
from ci.series import compose as composing
from ci.series.base import open_base
from ci.series.compose import BaseTree, Commit, Planned
from ci.series.message import Message
from ci.series.model import SeriesFiles, Topic
from ci.series.patch import file_name
from ci.series.resolutions import Resolution
from ci.series.topics import subset, topic_closure, topic_named, topic_patches
from ci.testing import vllm_checks as lint
from ci.worktree.tree import WorkTree

CATEGORIES = (
    "Bugfix", "CI/Build", "Doc", "Model", "Frontend", "Kernel", "Core", "Hardware", "Misc",
)  # fmt: skip
"""The kinds of pull requests that vLLM's contributing guide names."""

_TITLE = re.compile(r"((?:\[[A-Za-z0-9][^\[\]]*\])+) \S.*")
_SPDX = re.compile(rb"^# SPDX-License-Identifier: Apache-2\.0$", re.MULTILINE)
_PUBLISHED = "refs/upstream/"
_PREVIOUS = "refs/upstream-before/"
REPOSITORY = "vllm-project/vllm"


@dataclass(frozen=True)
class Exported:
    """A topic, as commits of the user's on a base.

    Attributes:
        store: where the commits are.
        own: the names of the topic's own patches; the others belong to topics
            that it needs.
        pushable: the base is a commit of vLLM's own history.
    """

    topic: Topic
    store: Git
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


def check_title(title: str, what: str, known: Sequence[str] = ()) -> None:
    """Refuse a title without a prefix in brackets.

    Args:
        known: prefixes of which one has to be there; with none, any will do.

    Raises:
        Fault: says what is wanted.
    """
    match = _TITLE.fullmatch(title)
    prefixes = re.findall(r"\[([^\[\]]*)\]", match[1]) if match else []
    if not prefixes or (known and not set(prefixes) & set(known)):
        choices = " ".join(f"[{word}]" for word in known or CATEGORIES)
        raise Fault(
            f"{what} `{title}` has no prefix that vLLM knows",
            todo=f"start it with one of {choices}",
        )


# -- making the commits -------------------------------------------------------


def _planned(
    targets: Targets,
    files: SeriesFiles,
    kept: Sequence[Resolution],
    topic: str,
    onto: str | None,
    source: str | None,
) -> tuple[BaseTree, tuple[Planned, ...], bool]:
    """The topic's closure on the pin, or on another commit, and whether that is
    one of vLLM's history."""
    store, pin = targets.store, targets.pin
    part = subset(files, topic_closure(files.series, topic))
    if onto is None:
        base = open_base(store, targets.downloads, pin, source)
        pushable = import_base(store, targets.downloads, pin).kind is Kind.GIT
        return base, tuple(composing.plan(store, base, part)), pushable
    if source is None:
        raise Fault("--onto needs a git source", todo="add --source CLONE")
    tried = try_on(targets, part, kept, onto, source)
    still = tried.rolled.report.open
    if still:
        raise Fault(
            f"{topic} does not fit {onto} as it is",
            todo=f"solve it first: `nox -s roll -- {onto} --source {source}`",
            details=tuple(f"{patch.file}: {patch.outcome.value}" for patch in still),
        )
    return tried.base, tried.rolled.planned, tried.target.sdist is None


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


def make(
    targets: Targets,
    files: SeriesFiles,
    kept: Sequence[Resolution],
    name: str,
    onto: str | None,
    source: str | None,
    who: Identity,
) -> Exported:
    """Make a topic's commits in the store; nothing refers to them yet.

    Args:
        kept: how conflicts were solved before.
        onto: a tag, branch or commit of `source` to stand on; None is the pin.

    Raises:
        Fault: no such topic, a title without a prefix, or it does not fit.
    """
    topic = topic_named(files.series, name)
    own = topic_patches(files.series, topic.name)
    if not own:
        raise Fault(f"the topic {topic.name} has no patches", todo="there is nothing to send")
    check_title(topic.title, f"the title of {topic.name}", CATEGORIES)
    base, planned, pushable = _planned(targets, files, kept, topic.name, onto, source)
    names = frozenset(patch.name for patch in own)
    if not any(one.patch.name in names for one in planned):
        raise Fault(f"{topic.name} is upstream already", todo="there is nothing to send")
    signed = tuple(_signed(one, who) for one in planned)
    for one in signed:
        check_title(one.parsed.subject, "the commit")
    commits = composing.write(targets.store, base, signed)
    return Exported(topic, targets.store, base, signed, commits, names, pushable)


# -- checking -----------------------------------------------------------------


def changed_files(exported: Exported) -> dict[str, bytes]:
    """Every file that the topic's commits add or change, with its content."""
    raws = changes(exported.store, exported.base.tree, exported.commits[-1].tree)
    entries = {raw.path: raw.new for raw in raws if raw.new is not None}
    contents = read_contents(exported.store, entries.values())
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


def check_exported(exported: Exported, build: Path, *, thorough: bool) -> None:
    """Hold what the topic changes to vLLM's rules, and to its checks if `thorough`."""
    files = changed_files(exported)
    base = exported.base.entries
    check_spdx({path: data for path, data in files.items() if os.fsencode(path) not in base})
    if thorough:
        tree = exported.commits[-1].tree
        failed = lint.check_tree(build, exported.store, tree, tuple(files))
        if failed:
            raise Fault(
                f"vLLM's own checks fail on {exported.topic.name}: {', '.join(failed)}",
                todo="correct what they name above",
            )


# -- publishing ---------------------------------------------------------------


def publish(exported: Exported, tree: WorkTree, line: str) -> str | None:
    """Set the branch in the work tree; the head of the export before, if there is one.

    Args:
        line: the line that the topic is exported from.

    Raises:
        Fault: there is no work tree, the branch is checked out, or has commits
            that are not ours.
    """
    store = exported.store
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
    name = f"{line}/{exported.topic.name}"
    before = store.resolve(_PUBLISHED + name)
    if now not in (None, before, exported.head):
        raise Fault(
            f"{exported.branch} in {tree.root} has commits of yours",
            todo=f"give them another name: git branch -m {exported.branch} NAME, there",
        )
    tree.share_boundary()
    if before not in (None, exported.head):
        store.run("update-ref", _PREVIOUS + name, str(before))
    store.run("update-ref", _PUBLISHED + name, exported.head)
    tree.repo.run("update-ref", ref, exported.head)
    return store.resolve(_PREVIOUS + name)


def range_diff(exported: Exported, before: str) -> str:
    """What changed since the last export that was another."""
    old_base = exported.store.text("rev-list", "--max-parents=0", before)
    out = exported.store.run(
        "range-diff",
        "--no-color",
        f"{old_base}..{before}",
        f"{exported.base.commit}..{exported.head}",
    )
    return out.decode("utf-8", "replace")


def mail(exported: Exported, folder: Path) -> list[Path]:
    """The topic's own commits as files for `git am`."""
    form = ("--full-index", "--binary", "--no-renames", "--no-signature", "--zero-commit")
    written: list[Path] = []
    for one, commit in zip(exported.planned, exported.commits, strict=True):
        if one.patch.name in exported.own:
            data = exported.store.run("format-patch", "-1", "-k", "--stdout", *form, commit.id)
            written.append(folder / file_name(len(written) + 1, one.parsed.subject))
            written[-1].write_bytes(data)
    return written


def topic_body(exported: Exported, text: Path) -> str:
    """The pull request's text, in the template of the vLLM that it stands on.

    Args:
        text: the topic's own.
    """
    store = exported.store
    blob = store.resolve(f"{exported.base.commit}:{prbody.TEMPLATE}")
    if blob is None:
        raise Fault(f"this vLLM has no {prbody.TEMPLATE}", todo="stand on another with --onto")
    template = store.blob(blob).decode("utf-8")
    wanted = prbody.headings(template)
    if not wanted:
        raise Fault(
            f"vLLM's {prbody.TEMPLATE} has no headings any more", todo="see ci/send/body.py"
        )
    return prbody.fill(template, prbody.sections(text, wanted))


def commands(exported: Exported, repo: Git, where: str, body: str, fork: str | None) -> list[str]:
    """What to run to send it; nothing of it is run here.

    Args:
        repo: of the work tree, which lies at `where` for the user.
        body: the file with the pull request's text.
        fork: the address of the user's fork; None is the remote of that name.
    """
    known = repo.attempt("config", "--get", "remote.fork.url").out.decode().strip()
    lines = []
    if fork and fork != known:
        verb = "set-url" if known else "add"
        lines.append(f"git -C {where} remote {verb} fork {shlex.quote(fork)}")
    elif not known:
        lines.append(f"git -C {where} remote add fork URL-OF-YOUR-FORK")
    owner = re.search(r"[:/]([^/:]+)/[^/]+?(?:\.git)?/?$", fork or known)
    lines.append(f"git -C {where} push --force-with-lease fork {exported.branch}")
    lines.append(
        f"gh pr create --repo {REPOSITORY} --base main "
        f"--head {owner[1] if owner else 'YOUR-NAME'}:{exported.branch} "
        f"--title {shlex.quote(exported.topic.title)} --body-file {shlex.quote(body)}"
    )
    return lines
