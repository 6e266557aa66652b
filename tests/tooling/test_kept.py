"""Folders that are made once for each key, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.kept import kept, key_of, sources_below


def test_made_once_for_each_key(tmp_path: Path) -> None:
    made: list[str] = []

    def make(folder: Path) -> None:
        made.append(folder.name)
        (folder / "file").write_text(str(len(made)))

    target = tmp_path / "a" / "b"
    assert kept(target, "1", make)
    assert not kept(target, "1", make)
    assert kept(target, "2", make)
    assert (target / "file").read_text() == "2"
    assert len(made) == 2


def test_interrupted_it_is_made_again(tmp_path: Path) -> None:
    target = tmp_path / "x"

    def half(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept(target, "1", half)
    assert not target.exists()
    assert kept(target, "1", lambda folder: (folder / "whole").touch())
    assert sorted(path.name for path in target.iterdir()) == [".made-from", "whole"]


def test_keys_follow_the_sources(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a")
    before = key_of("w", files=sources_below(tmp_path))
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("x")
    assert key_of("w", files=sources_below(tmp_path)) == before
    assert key_of("v", files=sources_below(tmp_path)) != before
    (tmp_path / "a.py").write_text("b")
    assert key_of("w", files=sources_below(tmp_path)) != before
