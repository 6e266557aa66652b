"""Hunks go where their lines are, or nowhere."""

from __future__ import annotations

import pytest

from ci.core.content import REGULAR, Content, blob_id
from ci.series import diff as filediff
from ci.series.hunks import DoesNotApply, apply_diff

IF = b"if x:\n    a\nelse:\n    b\n"


def _diff(before: bytes, hunk: bytes, old_id: str | None = None) -> filediff.FileDiff:
    """A change to a file named f that was made for `before`."""
    old = old_id or blob_id(before)
    head = f"diff --git a/f b/f\nindex {old}..{'2' * 40} 100644\n".encode()
    return filediff.parse(head + b"--- a/f\n+++ b/f\n" + hunk)[0]


def _apply(diff: filediff.FileDiff, data: bytes) -> bytes:
    content = apply_diff(diff, Content(REGULAR, data), "p")
    assert content is not None
    return content.data


DELETE = b"@@ -1,4 +1,2 @@\n if x:\n     a\n-else:\n-    b\n"


def test_the_second_of_two_equal_blocks() -> None:
    """Where GNU patch would change the first. In another file, no line number tells."""
    hunk = DELETE.replace(b"-1,4 +1,2", b"-6,4 +6,2")
    twice = IF + b"\n" + IF
    assert _apply(_diff(twice, hunk), twice) == IF + b"\nif x:\n    a\n"
    with pytest.raises(DoesNotApply, match=r"fits in 2 places \(lines 1, 6\)"):
        _apply(_diff(b"", hunk), twice)


def test_two_places_and_a_line_number_of_neither() -> None:
    diff = _diff(b"", DELETE.replace(b"-1,4 +1,2", b"-3,4 +3,2"))
    with pytest.raises(DoesNotApply, match=r"fits in 2 places \(lines 1, 6\)"):
        _apply(diff, IF + b"\n" + IF)


def test_one_place_elsewhere() -> None:
    diff = _diff(b"", DELETE)
    assert _apply(diff, b"#\n#\n" + IF) == b"#\n#\nif x:\n    a\n"


def test_later_hunks_move_with_earlier_ones() -> None:
    hunks = b"@@ -1 +1 @@\n-one\n+ONE\n@@ -3 +3 @@\n-x\n+X\n"
    assert _apply(_diff(b"", hunks), b"#\n#\none\n#\nx\n") == b"#\n#\nONE\n#\nX\n"
    # Twice `x`: that the first hunk is two lines further down does not tell which is meant.
    with pytest.raises(DoesNotApply, match=r"hunk 2 of 2 .* fits in 2 places \(lines 5, 6\)"):
        _apply(_diff(b"", hunks), b"#\n#\none\n#\nx\nx\n")


def test_the_right_file_and_the_wrong_line() -> None:
    """The file is the very one; then a hunk must not have to move."""
    data = b"#\n" + IF
    with pytest.raises(DoesNotApply):
        _apply(_diff(data, DELETE), data)


def test_an_insertion_without_context_needs_the_very_file() -> None:
    insert = b"@@ -1,0 +2 @@\n+new\n"
    assert _apply(_diff(b"a\nb\n", insert), b"a\nb\n") == b"a\nnew\nb\n"
    with pytest.raises(DoesNotApply):
        _apply(_diff(b"", insert, "1" * 40), b"a\nc\n")


def test_no_newline_is_content() -> None:
    hunk = b"@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n"
    assert _apply(_diff(b"a", hunk), b"a") == b"b\n"
    with pytest.raises(DoesNotApply):
        _apply(_diff(b"", hunk), b"a\n")


def test_carriage_returns_are_content() -> None:
    with pytest.raises(DoesNotApply):
        _apply(_diff(b"", b"@@ -1 +1 @@\n-a\n+b\n"), b"a\r\n")


def test_blanks_are_content() -> None:
    with pytest.raises(DoesNotApply):
        _apply(_diff(b"", b"@@ -1,2 +1,2 @@\n a \n-b\n+c\n"), b"a\nb\n")


def test_which_of_several_hunks() -> None:
    hunks = b"@@ -1 +1 @@\n-a\n+A\n@@ -3 +3 @@\n-c\n+C\n"
    with pytest.raises(DoesNotApply, match=r"p: f: hunk 2 of 2 \(@@ -3,1 \+3,1 @@\)"):
        _apply(_diff(b"", hunks), b"a\nb\nd\n")


@pytest.mark.parametrize("mode", ["100755", "120000"])
def test_another_mode(mode: str) -> None:
    diff = _diff(b"", b"@@ -1 +1 @@\n-a\n+b\n")
    with pytest.raises(DoesNotApply, match=f"mode is {mode}"):
        apply_diff(diff, Content(mode, b"a\n"), "p")


def test_presence() -> None:
    diff = _diff(b"", b"@@ -1 +1 @@\n-a\n+b\n")
    with pytest.raises(DoesNotApply, match="no such file"):
        apply_diff(diff, None, "p")
    new = filediff.FileDiff(b"f", None, REGULAR, "0" * 40, blob_id(b""))
    with pytest.raises(DoesNotApply, match="there already"):
        apply_diff(new, Content(REGULAR, b""), "p")
    gone = filediff.FileDiff(b"f", REGULAR, None, blob_id(b"a\n"), "0" * 40)
    with pytest.raises(DoesNotApply, match="does not hold all its lines"):
        apply_diff(gone, Content(REGULAR, b"a\n"), "p")
