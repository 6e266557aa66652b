"""Folders that are made once for each key, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci.core.cache import ensure_built, is_noted, key_of, note, sources_below


def test_made_once_for_each_key(tmp_path: Path) -> None:
    made: list[str] = []

    def make(folder: Path) -> None:
        made.append(folder.name)
        (folder / "file").write_text(str(len(made)))

    target = tmp_path / "a" / "b"
    assert ensure_built(target, "1", make)
    assert not ensure_built(target, "1", make)
    assert ensure_built(target, "2", make)
    assert (target / "file").read_text() == "2"
    assert len(made) == 2


def test_interrupted_it_is_made_again(tmp_path: Path) -> None:
    target = tmp_path / "x"

    def half(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_built(target, "1", half)
    assert not target.exists()
    assert ensure_built(target, "1", lambda folder: (folder / "whole").touch())
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


def test_a_file_is_noted_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    assert not is_noted(path, "1")
    path.write_text("a")
    assert not is_noted(path, "1")
    note(path, "1")
    assert is_noted(path, "1")
    assert not is_noted(path, "2")
    os.utime(path, (1, 1))
    assert is_noted(path, "1")
    with monkeypatch.context() as patch:
        patch.setattr("ci.core.cache.sha256_of", lambda path: pytest.fail("read again"))
        assert is_noted(path, "1")
    path.write_text("b")
    assert not is_noted(path, "1")
    note(path, "1")
    (tmp_path / ".file.json").write_text("[]")
    assert not is_noted(path, "1")


def test_made_in_place(tmp_path: Path) -> None:
    target = tmp_path / "x"

    def half(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_built(target, "1", half, in_place=True)
    seen: list[Path] = []
    assert ensure_built(target, "1", seen.append, in_place=True)
    assert seen == [target]
    assert not ensure_built(target, "1", half, in_place=True)
    assert not (target / "half").exists()
