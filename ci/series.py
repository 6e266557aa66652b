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
from dataclasses import dataclass, field
from typing import Any

from ci import files, toml
from ci.errors import Fault, listed
from ci.layout import Layout
from ci.objects import Content, show

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
        file: its name in patches/.
        overlay: paths that it adds, as in vLLM's tree.
        needs: names of the earlier patches that it does not work without.
        upstream: link to the PR or commit that took it, if any.
        declared: paths where it is meant to change a mode or binary bytes.
    """

    file: str
    topic: str
    overlay: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    upstream: str = ""
    declared: tuple[str, ...] = ()

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
    """The series with the bytes of every file that it consists of."""

    series: Series
    patches: Mapping[str, bytes]
    overlay: Mapping[str, Content] = field(default_factory=dict)

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


def _wrong(where: str, why: str) -> Fault:
    return Fault(f"patches/series.toml: {where} {why}", todo="mend it")


def _strings(entry: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = entry.pop(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong(where, f"`{key}` should be a list of strings")
    return tuple(value)


def _string(entry: dict[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = entry.pop(key, default)
    if not isinstance(value, str):
        raise _wrong(where, f"`{key}` should be a string" if value else f"has no `{key}`")
    return value


def _known(entry: dict[str, Any], where: str) -> None:
    if entry:
        raise _wrong(where, f"has an unknown key `{next(iter(entry))}`")


def _topic(entry: dict[str, Any]) -> Topic:
    name = _string(entry, "name", "a topic")
    where = f"topic {name}"
    topic = Topic(
        name,
        _string(entry, "title", where),
        _string(entry, "upstream", where, ""),
        _string(entry, "state", where, "local"),
    )
    _known(entry, where)
    if topic.state not in STATES:
        raise _wrong(where, f"has the state {topic.state}, not one of {', '.join(STATES)}")
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise _wrong(where, "should have a name of small letters, digits, `-`, `_` and `.`")
    return topic


def _patch(entry: dict[str, Any]) -> Patch:
    file = _string(entry, "file", "a patch")
    where = f"patch {file}"
    if not re.fullmatch(r"[A-Za-z0-9._-]+\.patch", file):
        raise _wrong(where, "should have a plain file name that ends in .patch")
    patch = Patch(
        file,
        _string(entry, "topic", where),
        _strings(entry, "overlay", where),
        _strings(entry, "needs", where),
        _string(entry, "upstream", where, ""),
        _strings(entry, "declared", where),
    )
    _known(entry, where)
    for path in patch.overlay:
        if is_unsafe(path):
            raise _wrong(where, f"names the path {path!r}, which a tree cannot hold")
    return patch


def is_unsafe(path: str) -> bool:
    """Whether a path could leave the tree, or is one that git will not hold."""
    parts = path.split("/")
    bad = any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
    return bad or "\n" in path or "\0" in path


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


def load_series(layout: Layout) -> Series:
    """Read patches/series.toml.

    Raises:
        Fault: it is missing, malformed or contradicts itself.
    """
    table = toml.load(layout.series, "patches/series.toml")
    for key in ("topic", "patch"):
        entries = table.get(key, [])
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            raise _wrong(f"`{key}`", f"should be written as [[{key}]] tables")
    series = Series(
        tuple(_topic(dict(entry)) for entry in table.pop("topic", [])),
        tuple(_patch(dict(entry)) for entry in table.pop("patch", [])),
    )
    _known(table, "it")
    _check(series)
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
    """The canonical text of patches/series.toml."""
    out = [_HEAD]
    for topic in series.topics:
        out.append("\n[[topic]]\n" + _line("name", topic.name) + _line("title", topic.title))
        out.append(_line("upstream", topic.upstream) + _line("state", topic.state))
    for patch in series.patches:
        out.append("\n[[patch]]\n" + _line("file", patch.file) + _line("topic", patch.topic))
        out.append(_line("overlay", patch.overlay) + _line("needs", patch.needs))
        out.append(_line("upstream", patch.upstream) if patch.upstream else "")
        out.append(_line("declared", patch.declared) if patch.declared else "")
    return "".join(out).encode("utf-8")


def own_comments(data: bytes) -> list[str]:
    """Lines of a series.toml that only a person can have written, and that
    writing it anew would drop."""
    ours = _HEAD.splitlines()
    lines = data.decode("utf-8", "replace").splitlines()
    return [line for line in lines if line.lstrip().startswith("#") and line not in ours]


# --- files --------------------------------------------------------------------


def overlay_path(layout: Layout, path: str) -> bytes:
    """Where an overlay file lies."""
    return files.under(layout.overlay, path.encode("utf-8"))


def list_overlay(layout: Layout) -> list[str]:
    """Every file under overlay/, by its path in vLLM's tree, sorted.

    Raises:
        Fault: a name that is not UTF-8.
    """
    return sorted(_walk(os.fsencode(layout.overlay), b""))


def _walk(folder: bytes, path: bytes) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        below = path + entry.name
        if os.fsdecode(entry.name) in _DROPPINGS or entry.name.endswith(b".pyc"):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, below + b"/")
            continue
        try:
            yield below.decode("utf-8")
        except UnicodeDecodeError:
            raise Fault(
                f"overlay/{show(below)} has a name that is not UTF-8", todo="rename it"
            ) from None


def _read_patches(layout: Layout, series: Series) -> dict[str, bytes]:
    found = {}
    for patch in series.patches:
        try:
            found[patch.file] = files.read_plain(layout.patches / patch.file)
        except FileNotFoundError:
            raise Fault(
                f"patches/{patch.file} is missing, but series.toml names it",
                todo=f"restore it (git checkout -- patches/{patch.file}) or take it out there",
            ) from None
    stray = sorted(p.name for p in layout.patches.glob("*.patch") if p.name not in found)
    if stray:
        raise Fault(
            f"patches/{stray[0]} is not named in patches/series.toml",
            todo="add it there or delete it",
            details=listed([f"patches/{name}" for name in stray[1:]]),
        )
    return found


def read_files(layout: Layout) -> SeriesFiles:
    """Read the series and all its bytes.

    Raises:
        Fault: a file that series.toml names is missing, or one is there that
            no patch names.
    """
    series = load_series(layout)
    patches = _read_patches(layout, series)
    present = list_overlay(layout)
    owned = {path: patch.file for patch in series.patches for path in patch.overlay}
    for path, owner in owned.items():
        if path not in present:
            raise Fault(
                f"{owner} names the overlay file {path}, but overlay/{path} is missing",
                todo="restore it, or take it out of patches/series.toml",
            )
    stray = [path for path in present if path not in owned]
    if stray:
        raise Fault(
            f"overlay/{stray[0]} is named by no patch",
            todo="add it to a patch's `overlay` in patches/series.toml, or delete it",
            details=listed([f"overlay/{path}" for path in stray[1:]]),
        )
    overlay = {path: files.read(overlay_path(layout, path)) for path in present}
    return SeriesFiles(series, patches, {p: c for p, c in overlay.items() if c is not None})
