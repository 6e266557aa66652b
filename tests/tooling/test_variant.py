"""Which wheel is built where."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.pinned import variant
from ci.pinned.variant import Variant, choose, gpu_visible


def _nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        ("echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'", True),
        ("echo 'No devices found.'; exit 6", False),
        ("exit 0", False),
    ],
)
def test_a_gpu_is_what_the_driver_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, seen: bool
) -> None:
    if any(Path("/proc/driver/nvidia/gpus").glob("*")):
        seen = True
    _nvidia_smi(tmp_path, monkeypatch, body)
    assert gpu_visible() is seen


@pytest.mark.parametrize(
    ("word", "gpu", "offered", "chosen"),
    [
        (None, True, list(Variant), [Variant.CUDA]),
        (None, False, list(Variant), [Variant.CPU]),
        (None, False, [Variant.CUDA], [Variant.CUDA]),
        ("cuda", False, list(Variant), [Variant.CUDA]),
        ("cpu", True, list(Variant), [Variant.CPU]),
        ("all", False, list(Variant), [Variant.CPU, Variant.CUDA]),
        ("all", False, [Variant.CUDA], [Variant.CUDA]),
        # Asked for by name: the build says that the pin names none.
        ("cpu", False, [Variant.CUDA], [Variant.CPU]),
    ],
)
def test_choose(
    monkeypatch: pytest.MonkeyPatch,
    word: str | None,
    gpu: bool,
    offered: list[Variant],
    chosen: list[Variant],
) -> None:
    monkeypatch.setattr(variant, "gpu_visible", lambda: gpu)
    assert list(choose(word, offered)) == chosen
