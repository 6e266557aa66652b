"""TOML becomes dataclasses; a fault names file, entry and key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ci.core import toml
from ci.core.errors import Fault


@dataclass(frozen=True)
class Entry:
    file: str
    sizes: tuple[int, ...] = ()
    ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Whole:
    name: str
    patch: tuple[Entry, ...] = ()


GOOD = """\
name = "n"
[[patch]]
file = "a.patch"
sizes = [1, 2]
[patch.ids]
"x/y.py" = "z"
"""


def _read(tmp_path: Path, text: str) -> Whole:
    path = tmp_path / "whole.toml"
    path.write_text(text, "utf-8")
    return toml.read(path, Whole, "some/whole.toml")


def test_a_file_becomes_its_dataclass(tmp_path: Path) -> None:
    entry = Entry("a.patch", (1, 2), {"x/y.py": "z"})
    assert _read(tmp_path, GOOD) == Whole("n", (entry,))
    assert _read(tmp_path, 'name = "n"\n') == Whole("n")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "n"\n', "", "some/whole.toml: object missing required field `name`"),
        ('name = "n"\n', 'name = "n"\nnane = 1\n', "some/whole.toml: unknown key `nane`"),
        ('name = "n"\n', "name = 3\n", "some/whole.toml: name: expected `str`, got `int`"),
        ('file = "a.patch"\n', "", "patch number 1: object missing required field `file`"),
        ("sizes", "size", "some/whole.toml: patch a.patch: unknown key `size`"),
        ("[1, 2]", '[1, "2"]', "patch a.patch sizes number 2: expected `int`, got `str`"),
        ('= "z"', "= 7", "some/whole.toml: patch a.patch ids: expected `str`, got `int`"),
        ("[[patch]]", "[patch]", "some/whole.toml: patch: expected `array`, got `object`"),
        ("[[patch]]", "[[patch]", "some/whole.toml is not valid TOML"),
        ("sizes", "<<<<<<< HEAD\nsizes", "some/whole.toml has merge conflicts"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(Fault) as caught:
        _read(tmp_path, GOOD.replace(old, new))
    assert said in str(caught.value).splitlines()[0]
    assert str(caught.value).count("git ") or "valid TOML" in said


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Fault, match=r"some/whole\.toml is missing"):
        toml.read(tmp_path / "none.toml", Whole, "some/whole.toml")
