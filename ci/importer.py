"""`python -m ci import-commits REPO RANGE --topic T`: commits → series.

Takes commits of any clone of vLLM into the series. They may stand on the
pinned release itself or on the series so far: each commit's changes are
applied at their exact context where the topic's patches belong.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ci import patchfile
from ci.compose import BaseTree
from ci.errors import Fault
from ci.export import declared, settle
from ci.git import Git, GitError
from ci.layout import Layout
from ci.objects import Content
from ci.patchfile import AUTHOR, PatchFile
from ci.progress import say
from ci.rewritten import authors_note
from ci.series import Patch, Series, SeriesFiles, Topic, read_files
from ci.sources import source_word
from ci.swap import changed, recover, write_series
from ci.trees import CommitInfo, Entry, file_diffs, read_commits, read_contents, with_binaries


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("repo", type=Path, metavar="REPO", help="a clone of vLLM")
    parser.add_argument("range", metavar="RANGE", help="the commits, e.g. v0.17.1..topic")
    parser.add_argument("--topic", required=True, help="the topic that they belong to")
    parser.add_argument("--title", help="the topic's title, for a new topic")
    parser.add_argument("--replace", action="store_true", help="drop the topic's patches first")
    parser.add_argument(
        "--fold",
        action="store_true",
        help="where a later commit changes a file that an earlier one adds, "
        "put the last version into the one that adds it",
    )
    parser.add_argument("--source", type=source_word, help="where the pinned vLLM comes from")


def open_clone(path: Path) -> Git:
    """The repository of a clone, a linked work tree or a bare repository.

    Raises:
        Fault: there is none.
    """
    dot_git = path / ".git"
    if dot_git.is_file():
        return Git((path / dot_git.read_text().removeprefix("gitdir: ").strip()).resolve())
    if dot_git.is_dir():
        return Git(dot_git)
    if (path / "HEAD").is_file():
        return Git(path)
    raise Fault(f"{path} is not a git repository", todo="name a clone of vLLM")


def read_range(clone: Git, words: str) -> list[CommitInfo]:
    """The commits of a range, oldest first.

    Raises:
        Fault: the range is not known, empty, or holds a merge.
    """
    try:
        listed = clone.run("rev-list", "--reverse", "--topo-order", words, "--").decode().split()
    except GitError as fault:
        raise Fault(
            f"{words} is no range of commits in {clone.git_dir}",
            todo="name one such as v0.17.1..topic",
            details=fault.details,
        ) from None
    commits = read_commits(clone, listed)
    if not commits:
        raise Fault(f"{words} holds no commit", todo="name one such as v0.17.1..topic")
    for commit in commits:
        if len(commit.parents) != 1:
            raise Fault(
                f"{commit.id[:12]} ({commit.message.subject}) is a merge or a root commit",
                todo="rebase the commits into a line",
            )
    return commits


def patches_of(
    clone: Git, base: BaseTree, commits: Sequence[CommitInfo], topic: str, fold: bool
) -> SeriesFiles:
    """Commits as a series of their own, each patch made for its own parent's tree."""
    parents = read_commits(clone, [commit.parents[0] for commit in commits])
    trees = {parent.id: parent.tree for parent in parents}
    pairs = [(trees[commit.parents[0]], commit.tree) for commit in commits]
    entries: list[Patch] = []
    written: dict[str, bytes] = {}
    overlay: dict[str, Content] = {}
    for index, (commit, diffs) in enumerate(zip(commits, file_diffs(clone, pairs), strict=True)):
        name = patchfile.file_name(index + 1, commit.message.subject)
        upstream = with_binaries(clone, [diff for diff in diffs if diff.path in base.entries])
        added: dict[str, Content] = {}
        for diff in diffs:
            path = diff.path.decode("utf-8", "backslashreplace")
            if diff.path in base.entries:
                continue
            if not diff.is_new and (diff.new_mode is None or not fold or path not in overlay):
                raise _not_folded(commit, path)
            assert diff.new_mode is not None
            entry = Entry(diff.new_mode, diff.new_id)
            content = read_contents(clone, [entry])[entry]
            overlay[path] = content
            if diff.is_new:
                added[path] = content
        patch = PatchFile(commit.message, AUTHOR, commit.date, tuple(upstream))
        written[name] = patchfile.render(patch)
        marks = declared(upstream, added)
        entries.append(Patch(name, topic, tuple(sorted(added)), declared=marks))
    return SeriesFiles(Series((), tuple(entries)), written, overlay)


def _not_folded(commit: CommitInfo, path: str) -> Fault:
    return Fault(
        f"commit {commit.id[:12]} ({commit.message.subject}) changes {path}, "
        "which another commit adds",
        todo="move the change into that commit (git rebase --autosquash), or pass --fold",
    )


def merge(old: SeriesFiles, new: SeriesFiles, topic: Topic, replace_topic: bool) -> SeriesFiles:
    """The series with the new patches in their topic's place."""
    kept = [p for p in old.series.patches if not (replace_topic and p.topic == topic.name)]
    places = [i for i, p in enumerate(old.series.patches) if p.topic == topic.name]
    end = places[-1] + 1 if places else len(kept)
    at = places[0] if replace_topic and places else end
    order = [(old, p) for p in kept[:at]] + [(new, p) for p in new.series.patches]
    order += [(old, p) for p in kept[at:]]
    patches: list[Patch] = []
    written: dict[str, bytes] = {}
    overlay: dict[str, Content] = {}
    for number, (source, patch) in enumerate(order, 1):
        file = f"{number:04d}-{patch.name}.patch"
        written[file] = source.patches[patch.file]
        for path in patch.overlay:
            if path in overlay:
                raise Fault(f"two patches add {path}", todo="add it in one of them")
            overlay[path] = source.overlay[path]
        patches.append(replace(patch, file=file))
    topics = list(old.series.topics)
    if topic.name not in [t.name for t in topics]:
        topics.append(topic)
    return SeriesFiles(Series(tuple(topics), tuple(patches)), written, overlay)


def read_or_empty(layout: Layout) -> SeriesFiles:
    """The series, or an empty one where there is none yet."""
    if not layout.series.exists() and not list(layout.patches.glob("*.patch")):
        return SeriesFiles(Series((), ()), {}, {})
    return read_files(layout)


def import_commits(
    layout: Layout, store: Git, base: BaseTree, args: argparse.Namespace
) -> list[str]:
    """Do it, given the base; returns the paths that changed."""
    clone = open_clone(args.repo)
    commits = read_range(clone, args.range)
    if note := authors_note([commit.author for commit in commits]):
        say(note)
    topic = Topic(args.topic, args.title or args.topic)
    new = patches_of(clone, base, commits, topic.name, args.fold)
    merged = merge(read_or_empty(layout), new, topic, args.replace)
    files, composed = settle(store, base, merged)
    return write_series(layout, files, composed.lock)


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb."""
    from ci.apply import open_base
    from ci.runlock import alone

    with alone(layout, "import-commits"):
        recover(layout)
        store, base = open_base(layout, args.source)
        for line in changed(layout, import_commits(layout, store, base, args)):
            say(line)
    say("`nox -s apply` composes it")
    return 0
