"""Where a run of lines of one version of a file is in another, if that can be proven.

Lines that are in a file more than once tell nothing by themselves, and how a
diff pairs equal blocks is arbitrary. So a place counts as proven only if

- the lines are there once in both versions, within the innermost scope around
  them (class, function, block: read from the indentation) that both versions
  have exactly once, and those of them above the line that counts, followed until
  one place is left in that scope, name the same place as those below it; or
- what stands above them, followed until only one place is left in either
  version, and what stands below them, followed likewise, name the same place.

A class or function that is in both versions also binds: a change to `class B` is
never put into `class A`, even if that is the only place where its lines are left.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

Scope = tuple[bytes, ...]
"""The headings around a line, the outermost first; the whole file is ()."""

_NO_HEADING = b")]}{#"
"""What a line starts with that closes or comments on a heading above it."""

_DEFINES = re.compile(rb"(async\s+def|def|class|struct|enum|namespace)\b")
_CONTROLS = re.compile(rb"(if|elif|else|for|while|with|try|except|finally|switch)\b")


def fits(wanted: Sequence[bytes], lines: Sequence[bytes], at: int) -> bool:
    """Whether `wanted` is in `lines` from index `at` on."""
    return 0 <= at <= len(lines) - len(wanted) and list(lines[at : at + len(wanted)]) == wanted


def places(wanted: list[bytes], lines: list[bytes]) -> list[int]:
    """Every index at which `wanted` is in `lines`; no lines fit only an empty file."""
    if not wanted:
        return [] if lines else [0]
    first = wanted[0]
    return [at for at, line in enumerate(lines) if line == first and fits(wanted, lines, at)]


@dataclass(frozen=True)
class Text:
    """One version of a file."""

    lines: list[bytes]

    @cached_property
    def _indexes(self) -> dict[bytes, list[int]]:
        """Where each line is: thousands of searches are made in one file."""
        found: dict[bytes, list[int]] = {}
        for index, line in enumerate(self.lines):
            found.setdefault(line, []).append(index)
        return found

    def places(self, wanted: list[bytes]) -> list[int]:
        """As `places`, in these lines."""
        if not wanted:
            return places(wanted, self.lines)
        return [at for at in self._indexes.get(wanted[0], ()) if fits(wanted, self.lines, at)]

    @cached_property
    def _headings(self) -> list[tuple[int, ...]]:
        """For each line the indexes of the headings around it."""
        found: list[tuple[int, ...]] = []
        above: list[tuple[int, int]] = []  # indentation and index, ever deeper
        now: tuple[int, ...] = ()
        for index, line in enumerate(self.lines):
            text = line.strip()
            if text:
                wide = line.expandtabs(8)
                depth = len(wide) - len(wide.lstrip())
                if text[0] not in _NO_HEADING:
                    above = [heading for heading in above if heading[0] < depth]
                now = tuple(at for deep, at in above if deep < depth)
                if text[0] not in _NO_HEADING:
                    above.append((depth, index))
            found.append(now)
        return found

    def _named(self, headings: tuple[int, ...]) -> Scope:
        return tuple(self.lines[at].strip() for at in headings)

    @cached_property
    def scopes(self) -> Counter[Scope]:
        """How many scopes of each name there are."""
        found = Counter(self._named(headings) for headings in set(self._headings))
        found[()] = 1
        return found

    def scope(self, index: int) -> Scope:
        """The innermost scope around a line."""
        if not self.lines:
            return ()
        return self._named(self._headings[min(index, len(self.lines) - 1)])

    def within(self, scope: Scope, wanted: list[bytes], mark: int) -> list[int]:
        """The places of `wanted` whose line `mark` is in `scope`."""
        found = self.places(wanted)
        return [at for at in found if self.scope(at + mark)[: len(scope)] == scope]


def _shared(old: Text, new: Text, index: int) -> Iterator[Scope]:
    """The scopes around a line of `old` that both versions have just once, from
    the innermost to the first that binds."""
    scope = old.scope(index)
    while True:
        if old.scopes[scope] == 1 and new.scopes[scope] == 1:
            yield scope
            if not scope or _binds(scope):
                return
        scope = scope[:-1]


def _binds(scope: Scope) -> bool:
    """Whether it is a definition; conditions and loops are often rewritten around a line."""
    if _DEFINES.match(scope[-1]):
        return True
    return len(scope) == 1 and not _CONTROLS.match(scope[-1])


def binding_scope(old: Text, new: Text, index: int) -> Scope:
    """The innermost class or function around a line of `old` that is in both; else the file."""
    return list(_shared(old, new, index))[-1]


def locate(old: Text, at: int, wanted: list[bytes], new: Text, mark: int = 0) -> int | None:
    """The index at which the lines that are at `at` in `old` are proven to be in `new`.

    Args:
        wanted: the lines.
        mark: which of them counts for the scope.
    """
    place = _only(old, at, wanted, new, mark)
    if place is None:
        return None
    # Seen from the other version, too: the place is in no other known definition.
    home, there = binding_scope(old, new, at + mark), binding_scope(new, old, place + mark)
    return place if home == there else None


def _only(old: Text, at: int, wanted: list[bytes], new: Text, mark: int) -> int | None:
    found: list[int] = []
    for scope in _shared(old, new, at + mark):
        found = new.within(scope, wanted, mark)
        if len(found) == 1 and len(old.within(scope, wanted, mark)) == 1:
            # The lines may reach into the next block, or begin in the one before:
            # neither end of them may speak of another place.
            return found[0] if _agree(old, at, wanted, new, found[0], mark, scope) else None
    above = _followed(old, at, wanted, new, -1)
    return above if above in found and above == _followed(old, at, wanted, new, 1) else None


def _agree(
    old: Text, at: int, wanted: list[bytes], new: Text, place: int, mark: int, scope: Scope
) -> bool:
    """Whether the lines down to `mark`, and those from it on, both name `place`."""
    head, tail = wanted[: mark + 1], wanted[mark:]
    return (
        _followed(old, at, head, new, -1, scope) == place
        and _followed(old, at + mark, tail, new, 1, scope) == place + mark
    )


def _followed(
    old: Text, at: int, wanted: list[bytes], new: Text, step: int, scope: Scope = ()
) -> int | None:
    """The one place that is left when ever more lines above (-1) or below (1) must agree.

    The ends of the scope are told from every line.
    """
    mark = len(wanted) - 1 if step < 0 else 0
    was, now = old.within(scope, wanted, mark), new.within(scope, wanted, mark)
    away = -1 if step < 0 else len(wanted)
    inside = True
    while inside and now and (len(was) > 1 or len(now) > 1):
        line = _line(old, at + away, scope)
        was = [place for place in was if _line(old, place + away, scope) == line]
        now = [place for place in now if _line(new, place + away, scope) == line]
        inside = line is not None
        away += step
    return now[0] if len(now) == 1 and len(was) == 1 else None


def _line(text: Text, index: int, scope: Scope) -> bytes | None:
    """A line of a scope; None outside of it, and for blank lines at its end."""
    at = index
    while 0 <= at < len(text.lines) and not text.lines[at].strip():
        at += 1
    inside = 0 <= at < len(text.lines) and text.scope(at)[: len(scope)] == scope
    return text.lines[index] if inside else None
