"""Which test functions of a file are the series'."""

from __future__ import annotations

from ci.testing.selection import changed_functions

BEFORE = b"""\
import pytest
LIMIT = 3
def helper(): return 1
@pytest.mark.parametrize("a", [1])
def test_same(a): assert a
def test_changed(): assert 1
class TestGroup:
    def test_inside(self): pass
"""


def test_only_what_differs() -> None:
    after = (
        b"# moved down\n\n" + BEFORE.replace(b"assert 1", b"assert 2") + b"def test_new(): pass\n"
    )
    assert changed_functions(BEFORE, after) == ["test_changed", "test_new"]
    assert changed_functions(BEFORE, BEFORE) == []


def test_a_mark_and_a_class_count() -> None:
    after = BEFORE.replace(b"[1]", b"[1, 2]").replace(b"pass", b"assert 0")
    assert changed_functions(BEFORE, after) == ["test_same", "TestGroup"]


def test_helpers_are_no_tests() -> None:
    assert changed_functions(BEFORE, BEFORE.replace(b"return 1", b"return 2")) == []
