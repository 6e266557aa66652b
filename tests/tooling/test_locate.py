"""A hunk goes to its own place among equal ones, or to none."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.core.content import REGULAR, Content
from ci.git.repo import Git
from ci.roll.place import Placed, place
from ci.roll.verdict import Outcome
from ci.series.diff import FileDiff, Hunk
from ci.series.locate import Text, locate

GIT = Git(Path("/nonexistent"))  # merging files needs no repository
BODY = tuple(f"    step_{n}()" for n in range(9))
Lines = list[str]
Blocks = list[tuple[str, tuple[str, ...]]]


def _data(lines: Lines) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _diff(before: Lines, after: Lines) -> FileDiff:
    hunks = []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for group in matcher.get_grouped_opcodes(3):
        lines = []
        for tag, a1, a2, b1, b2 in group:
            if tag == "equal":
                lines += [f" {line}\n" for line in before[a1:a2]]
            else:
                lines += [f"-{line}\n" for line in before[a1:a2]]
                lines += [f"+{line}\n" for line in after[b1:b2]]
        first, last = group[0], group[-1]
        old, new = last[2] - first[1], last[4] - first[3]
        hunks.append(
            Hunk(first[1] + bool(old), old, first[3] + bool(new), new, b"",
                 tuple(line.encode() for line in lines))
        )  # fmt: skip
    return FileDiff(b"f.py", REGULAR, REGULAR, "1" * 40, "2" * 40, tuple(hunks))


def _place(before: Lines, after: Lines, now: Lines) -> Placed:
    was, is_ = Content(REGULAR, _data(before)), Content(REGULAR, _data(now))
    return place(GIT, _diff(before, after), was, is_)


def _class(name: str, body: Lines) -> Lines:
    return [f"class {name}:", *body, ""]


def _method(name: str, body: Lines) -> Lines:
    lines = [f"    {line}" if line else "" for line in body]
    return [f"class {name}:", "    def run(self):", *lines, ""]


def _section(name: str, body: Lines) -> Lines:
    return [f"[{name}]", *(line.strip() for line in body), ""]


def _field(name: str, body: Lines) -> Lines:
    return ["[part]", f"name = {name}", *(line.strip() for line in body), ""]


def _title(name: str, body: Lines) -> Lines:
    return [f"## {name}", "", *(line.strip() for line in body), ""]


def _item(name: str, body: Lines) -> Lines:
    return ["{", f'  "name": "{name}",', *(f"  {line.strip()}" for line in body), "},"]


def _function(name: str, body: Lines) -> Lines:
    return [f"void {name}(int x)", "{", *body, "}", ""]


Style = Callable[[str, Lines], Lines]
STYLES = (_class, _method, _section, _field, _title, _item, _function)
"""How one named block is written in files of different kinds."""


def _file(blocks: Blocks, style: Style = _class) -> Lines:
    return ["import os", "", *(line for name, body in blocks for line in style(name, [*body]))]


def _bodies(data: bytes) -> dict[str, tuple[str, ...]]:
    found: dict[str, Lines] = {}
    now: Lines = []
    for line in data.decode().splitlines():
        if line.startswith("class "):
            now = found.setdefault(line[6:-1], [])
        elif line:
            now.append(line)
    return {name: tuple(body) for name, body in found.items()}


def test_two_classes_with_the_same_body_change_places() -> None:
    changed = (*BODY[:4], *BODY[6:])
    placed = _place(
        _file([("A", BODY), ("B", BODY)]),
        _file([("A", BODY), ("B", changed)]),
        _file([("B", BODY), ("A", BODY)]),
    )
    assert [hunk.outcome for hunk in placed.hunks] == [Outcome.MOVED]
    assert _bodies(placed.content) == {"B": changed, "A": BODY}


def test_a_result_in_another_class_is_not_upstream() -> None:
    changed = (*BODY[:4], *BODY[6:])
    placed = _place(
        _file([("A", BODY), ("B", BODY)]),
        _file([("A", BODY), ("B", changed)]),
        _file([("B", BODY), ("A", changed)]),
    )
    assert _bodies(placed.content) == {"B": changed, "A": changed}


def test_the_one_place_that_is_left_is_not_the_hunks_own() -> None:
    changed = (*BODY[:4], *BODY[6:])
    other = tuple(line.replace("step", "other") for line in BODY)
    for now in ([("A", BODY)], [("A", BODY), ("B", other)], [("B", other), ("A", BODY)]):
        placed = _place(
            _file([("A", BODY), ("B", BODY)]), _file([("A", BODY), ("B", changed)]), _file(now)
        )
        (hunk,) = placed.hunks
        assert hunk.outcome is Outcome.CONFLICT
        assert " in `class A:`" in hunk.note
        assert "belongs in `class B:`" in hunk.note
        assert placed.content == _data(_file(now))
        assert len(placed.homeless) == 1


def test_equal_blocks_without_a_name_are_listed() -> None:
    block = ["[part]", "one", "two", "three", "four", "five", "six", "seven"]
    before = block * 3
    after = [*before[:12], "FIVE", *before[13:]]
    placed = _place(before, after, block * 4)
    (hunk,) = placed.hunks
    assert hunk.outcome is Outcome.CONFLICT
    assert "could go to line 2, line 10, line 18, line 26" in hunk.note
    assert placed.content == _data(block * 4)


def test_surroundings_prove_a_place_in_plain_text() -> None:
    block = ["one", "two", "three", "four", "five", "six", "seven"]
    before = ["first", *block, "second", *block, "end"]
    after = list(before)
    after[12] = "FOUR"
    now = ["new", "new", *before]
    placed = _place(before, after, now)
    assert [hunk.outcome for hunk in placed.hunks] == [Outcome.MOVED]
    assert placed.content == _data(["new", "new", *after])


def test_a_deletion_at_the_end_and_its_result() -> None:
    before = [f"line {n}" for n in range(8)]
    placed = _place(before, before[:-2], ["new", *before])
    assert [hunk.outcome for hunk in placed.hunks] == [Outcome.MOVED]
    assert placed.content == _data(["new", *before[:-2]])
    placed = _place(before, before[:-2], ["new", *before[:-2]])
    assert [hunk.outcome for hunk in placed.hunks] == [Outcome.UPSTREAM]


@pytest.mark.parametrize("taken", [False, True])
def test_one_more_of_the_same(taken: bool) -> None:
    before = ["a", *["x"] * 5, "b"]
    after = ["a", *["x"] * 6, "b"]
    placed = _place(before, after, ["0", *(after if taken else before)])
    outcome = Outcome.UPSTREAM if taken else Outcome.MOVED
    assert [hunk.outcome for hunk in placed.hunks] == [outcome]
    assert placed.content == _data(["0", *after])


def test_locate_asks_both_sides() -> None:
    """What stands below may be another block's surroundings; above says no."""
    old = Text([b"A", b"x", b"y", b"B", b"x", b"y", b"end"])
    new = Text([b"B", b"x", b"y", b"A", b"x", b"y", b"end"])
    assert locate(old, 4, [b"x", b"y"], new) is None
    assert locate(old, 4, [b"x", b"y"], Text([b"0", *old.lines])) == 5


# -- with an oracle -----------------------------------------------------------

_LINES = [f"    step_{n}()" for n in range(4)] + ["    if x:", "        y()", ""]
_bodies_of = st.lists(st.sampled_from(_LINES), min_size=1, max_size=9).map(tuple)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Blocks, str, tuple[str, ...], Blocks]:
    """Blocks with bodies of which many are equal, a change to one, and upstream's file,
    in which blocks are gone, edited, renamed (to `Z…`), in another order, or changed likewise."""
    pool = draw(st.lists(_bodies_of, min_size=1, max_size=2))
    names = draw(st.permutations("ABCDE"))[: draw(st.integers(2, 5))]
    before = [(name, draw(st.sampled_from(pool))) for name in names]
    target, body = draw(st.sampled_from(before))
    at = draw(st.integers(0, len(body) - 1))
    gone = draw(st.integers(0, min(2, len(body) - at)))
    added = draw(st.lists(st.sampled_from([*_LINES, "    new()"]), max_size=2))
    changed = (*body[:at], *added, *body[at + gone :])
    now = []
    for name, old in draw(st.permutations(before)):
        kind = draw(st.sampled_from(["same"] * 4 + ["gone", "changed", "edited", "renamed"]))
        if kind == "edited":
            line = draw(st.integers(0, len(old) - 1))
            old = (*old[:line], "    edited()", *old[line + 1 :])
        if kind != "gone":
            there = "Z" + name if kind == "renamed" else name
            now.append((there, changed if kind == "changed" and old == body else old))
    return before, target, changed, now


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=60, deadline=None)
@given(case=_cases())
def test_never_another_block(
    style: Style, case: tuple[Blocks, str, tuple[str, ...], Blocks]
) -> None:
    before, target, changed, now = case
    after = [(name, changed if name == target else body) for name, body in before]
    if _file(after, style) == _file(before, style):
        return
    placed = _place(_file(before, style), _file(after, style), _file(now, style))
    if any(hunk.outcome.open for hunk in placed.hunks):
        return
    (home,) = (name for name, _ in now if name in (target, "Z" + target))
    was, body = dict(now)[home], dict(before)[target]
    if was == body:
        want = [(name, changed if name == home else body) for name, body in now]
        assert placed.content == _data(_file(want, style))
    elif was == changed:
        assert placed.content == _data(_file(now, style))
    for name, other in now:
        assert name == home or _data(style(name, [*other])) in placed.content


@pytest.mark.parametrize("style", [_section, _field, _title, _item])
def test_an_equal_result_in_another_block_is_not_upstream(style: Style) -> None:
    body = ("one", "two", "three", "", "four", "five")
    before = [(name, body) for name in "ABC"]
    changed = (*body[:-1], "5")
    after = [("A", changed), *before[1:]]
    now = [("B", changed), ("C", body), ("A", body)]
    placed = _place(_file(before, style), _file(after, style), _file(now, style))
    assert [hunk.outcome for hunk in placed.hunks] == [Outcome.CONFLICT]


def test_the_end_of_a_hunk_does_not_name_another_items_place() -> None:
    """What comes after an item of a list is what came after another one before."""
    body = ("one", "two", "three")
    now = [("Z", body), ("A", ("one", "two", "edited"))]
    placed = _place(
        _file([("A", body), ("B", body)], _item),
        _file([("A", (*body, "four")), ("B", body)], _item),
        _file(now, _item),
    )
    assert [hunk.outcome for hunk in placed.hunks] == [Outcome.CONFLICT]
    assert placed.content == _data(_file(now, _item))


def test_what_a_deletion_leaves_was_there_before() -> None:
    """One of two equal lines goes; the other and the class's end say nothing of that."""
    body, less = ("    x()", "    y()", "    y()"), ("    x()", "    y()")
    before = [(name, body) for name in "ABCD"]
    after = [("A", body), ("B", less), ("C", body), ("D", body)]
    now = [("A", body), ("C", less), ("B", body), ("D", body)]
    placed = _place(_file(before), _file(after), _file(now))
    assert all(hunk.outcome is not Outcome.UPSTREAM for hunk in placed.hunks)
    assert _bodies(placed.content)["C"] == less


# -- without indentation ------------------------------------------------------


def test_the_next_heading_is_not_the_hunks_own() -> None:
    """A hunk at a block's end has the next heading around it, which tells another block."""
    body = [f"x{n} = {n}" for n in range(6)]
    before = ["[a]", *body, "", "[b]", *body, "", "[c]", "last", ""]
    after = ["[a]", *body, "", "[b]", *body[:-1], "x5 = 6", "", "[c]", "last", ""]
    now = ["[b]", *body, "", "[a]", *body, "", "[c]", "last", ""]
    placed = _place(before, after, now)
    assert [hunk.outcome for hunk in placed.hunks] == [Outcome.CONFLICT]
    assert placed.content == _data(now)
    still = ["[0]", "zero", "", *before]
    assert _place(before, after, still).content == _data(["[0]", "zero", "", *after])
