"""The two wheels that one series makes, and which of them fits this machine."""

from __future__ import annotations

import enum
import platform
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path


class Variant(enum.Enum):
    """What a wheel runs on; the value is vLLM's own name of the target device."""

    CPU = "cpu"
    CUDA = "cuda"

    @property
    def local_label(self) -> str:
        """What the local version ends in.

        vLLM's CPU platform is chosen only if the installed version holds
        "cpu"; the CUDA wheel carries no mark, as upstream's does not.
        """
        return ".cpu" if self is Variant.CPU else ""


def machine() -> str:
    """This machine's processor, as wheel file names call it."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def gpu_visible() -> bool:
    """Whether an NVIDIA driver with a device is there."""
    if any(Path("/proc/driver/nvidia/gpus").glob("*")):
        return True
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and b"GPU " in listed.stdout


def choose(name: str | None, offered: Collection[Variant]) -> tuple[Variant, ...]:
    """The variants that `cuda`, `cpu` or `all` stand for; without a name, this machine's.

    Args:
        offered: the variants that the pin names a precompiled wheel for.
    """
    if name == "all":
        return tuple(offered)
    if name is not None:
        return (Variant(name),)
    return (Variant.CUDA if gpu_visible() or Variant.CPU not in offered else Variant.CPU,)
