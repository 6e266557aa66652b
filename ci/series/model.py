"""The series as it lies on disk: its order, its patches, its overlay files.

`read_files` reads everything once; what follows (lock, composing, identity)
works on those bytes, so nothing can change underneath it halfway.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ci.core import files, toml
from ci.core.content import Content, has_conflicts, may_be_ref, show
from ci.core.errors import Fault, listed
from ci.series.merged import settled
from ci.series.paths import SeriesPaths, named

_HEAD = """\
# The order of the patches, the files that each adds (under overlay/), and the
# topics under which they go upstream. Written by `nox -s refresh`; editing by
# hand is fine: `nox -s lint` checks it, `nox -s apply -- --relock` accepts it.
"""
STATES = ("local", "draft", "open", "merged", "declined")
"""Where a topic stands upstream."""

# What tools drop beside sources; never part of the overlay.
_DROPPINGS = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".DS_Store"})


@dataclass(frozen=True)
class Topic:
    """What goes upstream as one PR."""

    name: str
    title: str
    upstream: str = ""
    state: str = "local"


@dataclass(frozen=True)
class Patch:
    """One entry of the series.

    Attributes:
        file: its name beside series.toml.
        overlay: paths that it adds, as in vLLM's tree.
        needs: names of the earlier patches that it does not work without.
        upstream: link to the PR or commit that took it, if any.
    """

    file: str
    topic: str
    overlay: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    upstream: str = ""

    @property
    def name(self) -> str:
        """What stays when patches before it come and go: the file name
        without its number and ending."""
        return re.sub(r"^\d+-", "", self.file).removesuffix(".patch")


@dataclass(frozen=True)
class Series:
    """Topics, and patches in the order in which they apply."""

    topics: tuple[Topic, ...]
    patches: tuple[Patch, ...]

    def find(self, word: str) -> int:
        """The index of the patch that `word` means: file, name, number, or a
        part of the name that only one has.

        Raises:
            Fault: none or several.
        """
        exact = [i for i, p in enumerate(self.patches) if word in (p.file, p.name)]
        if exact:
            return exact[0]
        if word.isdigit() and 1 <= int(word) <= len(self.patches):
            return int(word) - 1
        part = [i for i, p in enumerate(self.patches) if word.lower() in p.file.lower()]
        if len(part) == 1:
            return part[0]
        raise Fault(
            f"{'several patches match' if part else 'no patch is called'} {word}",
            todo="name one of these",
            details=tuple(self.patches[i].file for i in part or range(len(self.patches))),
        )


@dataclass(frozen=True)
class SeriesFiles:
    """The series with the bytes of every file that it consists of.

    Attributes:
        line: the line that it is of, by which its files are named to a person.
    """

    line: str
    series: Series
    patches: Mapping[str, bytes]
    overlay: Mapping[str, Content] = field(default_factory=dict)

    @property
    def patch_folder(self) -> str:
        """Where the line's patches, pin and lock lie, from the checkout's root."""
        return f"patches/{self.line}"

    def patch_path(self, patch: Patch) -> str:
        """Where a patch lies, from the checkout's root."""
        return f"{self.patch_folder}/{patch.file}"

    def overlay_path(self, path: str) -> str:
        """Where an overlay file lies, from the checkout's root."""
        return f"overlay/{self.line}/{path}"

    def digest(self, patch: Patch) -> str:
        """sha256 over one patch: its file and its overlay files."""
        total = hashlib.sha256(self.patches[patch.file])
        for path in patch.overlay:
            content = self.overlay[path]
            total.update(f"\0{path}\0{content.mode}\0{content.id}".encode())
        return total.hexdigest()

    def fingerprint(self) -> str:
        """sha256 over everything that decides what is composed."""
        order = [(patch.file, self.digest(patch)) for patch in self.series.patches]
        return hashlib.sha256(json.dumps(order).encode()).hexdigest()


# --- series.toml --------------------------------------------------------------


class _WrongEntry(ValueError):
    """An entry of series.toml that cannot be: where it is, and why."""


def _wrong(where: str, why: str) -> _WrongEntry:
    return _WrongEntry(f"{where} {why}")


@dataclass(frozen=True)
class _SeriesToml:
    """The tables of series.toml."""

    topic: tuple[Topic, ...] = ()
    patch: tuple[Patch, ...] = ()


def _check_topic(topic: Topic) -> None:
    where = f"topic {topic.name}"
    if topic.state not in STATES:
        raise _wrong(where, f"has the state {topic.state}, not one of {', '.join(STATES)}")
    if not re.fullmatch(r"[a-z0-9._-]+", topic.name):
        raise _wrong(where, "should have a name of small letters, digits, `-`, `_` and `.`")
    if not may_be_ref(topic.name):
        raise _wrong(where, "has a name that git takes for no branch, as with `..` or `.lock`")


def _check_patch(patch: Patch) -> None:
    where = f"patch {patch.file}"
    if not re.fullmatch(r"[A-Za-z0-9._-]+\.patch", patch.file):
        raise _wrong(where, "should have a plain file name that ends in .patch")
    for path in patch.overlay:
        why, _ = unfit(path)
        if why:
            raise _wrong(where, f"names {path!r}, {why}")


def unfit(path: str) -> tuple[str, str]:
    """Why overlay/ cannot hold a path, and what to do instead; both empty where it can."""
    parts = path.split("/")
    if any(p in ("", ".", "..") or p.lower() == ".git" for p in parts) or {*path} & {*"\n\0"}:
        return "which overlay/ cannot hold", "rename the file"
    if _is_dropping(path):
        todo = f"take it out of the work tree's index: git rm --cached -- {path}"
        return "a by-product of tools, which overlay/ leaves out", todo
    if parts[-1].lower() in (".gitattributes", ".gitignore"):
        todo = f"put its rules into vLLM's own {parts[-1]}, which a patch can change"
        return "which would govern this project's own checkout, too", todo
    return "", ""


def _is_dropping(path: str) -> bool:
    return path.endswith(".pyc") or not _DROPPINGS.isdisjoint(path.split("/"))


def _check(series: Series) -> None:
    """What must hold between the entries."""
    topics = [topic.name for topic in series.topics]
    owners: dict[str, str] = {}
    earlier: list[str] = []
    for name in topics:
        if topics.count(name) > 1:
            raise _wrong(f"topic {name}", "is there twice")
    for patch in series.patches:
        where = f"patch {patch.file}"
        if patch.topic not in topics:
            raise _wrong(where, f"names the topic {patch.topic}, which is not there")
        if patch.name.lower() in (name.lower() for name in earlier):
            raise _wrong(where, "has the name of an earlier patch")
        for need in patch.needs:
            if need not in earlier:
                raise _wrong(where, f"needs {need}, which is no earlier patch")
        for path in patch.overlay:
            if path in owners:
                raise _wrong(where, f"adds {path}, which {owners[path]} adds already")
            owners[path] = patch.file
        earlier.append(patch.name)


def load_series(folders: SeriesPaths) -> Series:
    """Read series.toml.

    Raises:
        Fault: it is missing, malformed or contradicts itself.
    """
    name = named(folders, folders.series)
    tables = toml.read(folders.series, _SeriesToml, name)
    series = Series(tables.topic, tables.patch)
    try:
        for topic in series.topics:
            _check_topic(topic)
        for patch in series.patches:
            _check_patch(patch)
        _check(series)
    except _WrongEntry as wrong:
        raise Fault(
            f"{name}: {wrong}", todo=f"correct that entry, or: git checkout -- {name}"
        ) from None
    return series


def toml_string(text: str) -> str:
    """`text` as a TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _line(key: str, value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return f"{key} = {toml_string(value)}\n"
    items = [toml_string(item) for item in value]
    short = f"{key} = [{', '.join(items)}]\n"
    if len(short) <= 80:
        return short
    return f"{key} = [\n" + "".join(f"    {item},\n" for item in items) + "]\n"


def dump_series(series: Series) -> bytes:
    """The canonical text of series.toml."""
    out = [_HEAD]
    for topic in series.topics:
        out.append("\n[[topic]]\n" + _line("name", topic.name) + _line("title", topic.title))
        out.append(_line("upstream", topic.upstream) + _line("state", topic.state))
    for patch in series.patches:
        out.append("\n[[patch]]\n" + _line("file", patch.file) + _line("topic", patch.topic))
        out.append(_line("overlay", patch.overlay) + _line("needs", patch.needs))
        out.append(_line("upstream", patch.upstream) if patch.upstream else "")
    return "".join(out).encode("utf-8")


def own_comments(data: bytes) -> list[str]:
    """Lines of a series.toml that only a person can have written, and that
    writing it anew would drop."""
    ours = _HEAD.splitlines()
    lines = data.decode("utf-8", "replace").splitlines()
    return [line for line in lines if line.lstrip().startswith("#") and line not in ours]


# --- files --------------------------------------------------------------------


def list_files(folder: Path) -> list[str]:
    """Every file below `folder` but the by-products of tools, by its path there, sorted.

    Raises:
        Fault: a name that is not UTF-8.
    """
    return sorted(_walk(os.fsencode(folder), b""))


def _walk(folder: bytes, path: bytes) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        below = path + entry.name
        if _is_dropping(os.fsdecode(entry.name)):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, below + b"/")
            continue
        try:
            yield below.decode("utf-8")
        except UnicodeDecodeError:
            raise Fault(
                f"{show(entry.path)} has a name that is not UTF-8", todo="rename it"
            ) from None


def _settled(files: SeriesFiles, settle: bool) -> SeriesFiles:
    """The series without what a merge left in its files.

    Raises:
        Fault: a person has to resolve it, or `settle` was not asked for.
    """
    patches = {name: settled(data) for name, data in files.patches.items()}
    of = files.series.patches
    left = [files.patch_path(patch) for patch in of if has_conflicts(patches[patch.file])]
    left += [files.overlay_path(p) for p, c in files.overlay.items() if has_conflicts(c.data)]
    if left:
        raise Fault(
            f"{left[0]} has merge conflicts",
            todo="resolve those that hold changed lines, leave those of index lines and hunk "
            "headers as they are; then run `nox -s apply -- --relock`",
            details=listed(left[1:]),
        )
    if patches != files.patches and not settle:
        left = [files.patch_path(p) for p in of if patches[p.file] != files.patches[p.file]]
        raise Fault(
            f"{left[0]} has merge conflicts, in ids and line numbers only",
            todo="`nox -s apply -- --relock` settles them",
            details=listed(left[1:]),
        )
    return replace(files, patches=patches)


def _check_present(folders: SeriesPaths, series: Series) -> None:
    """See that the files of a series are those that series.toml names."""
    table = named(folders, folders.series)
    found = [path for path in folders.patches.glob("*.patch") if path.exists()]
    found += map(folders.overlay.joinpath, list_files(folders.overlay))
    present = {named(folders, path) for path in found}
    owners = {named(folders, folders.patches / one.file): "series.toml" for one in series.patches}
    for one in series.patches:
        owners |= {named(folders, folders.overlay / path): one.file for path in one.overlay}
    for path, owner in owners.items():
        if path not in present:
            raise Fault(
                f"{path} is missing, but {owner} names it",
                todo=f"restore it (git checkout -- {path}) or take it out of {table}",
            )
    stray = sorted(present - owners.keys())
    if stray:
        raise Fault(
            f"{stray[0]} is not named in {table}",
            todo="add it there (an overlay file to its patch's `overlay`), or delete it",
            details=listed(stray[1:]),
        )


def series_paths(folders: SeriesPaths, files: SeriesFiles) -> list[str]:
    """The files of a series by their paths from the checkout's root."""
    where = [folders.series, folders.lock, *map(folders.patches.joinpath, files.patches)]
    where += map(folders.overlay.joinpath, files.overlay)
    return [named(folders, path) for path in where]


def read_files(folders: SeriesPaths, *, settle: bool = False) -> SeriesFiles:
    """Read the series and all its bytes.

    Args:
        settle: take out merge conflicts that only ids and line numbers are in.

    Raises:
        Fault: a file that series.toml names is missing, one is there that no
            patch names, or one has merge conflicts.
    """
    series = load_series(folders)
    _check_present(folders, series)
    patches = {p.file: files.read_plain(folders.patches / p.file) for p in series.patches}
    named = (path for patch in series.patches for path in patch.overlay)
    overlay = {path: files.read(files.under(folders.overlay, path.encode())) for path in named}
    found = {path: content for path, content in overlay.items() if content is not None}
    return _settled(SeriesFiles(folders.line, series, patches, found), settle)
