"""The two wheels that one series makes, and which of them fits this machine."""

from __future__ import annotations

import enum
import platform
import shutil
import subprocess
from pathlib import Path


class Variant(enum.Enum):
    """What a wheel runs on; the value is vLLM's own name of the target device."""

    CUDA = "cuda"
    CPU = "cpu"

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


def choose(name: str | None) -> tuple[Variant, ...]:
    """The variants that `cuda`, `cpu` or `all` stand for; without a name, this machine's."""
    if name == "all":
        return (Variant.CPU, Variant.CUDA)
    if name is None:
        return (Variant.CUDA,) if gpu_visible() else (Variant.CPU,)
    return (Variant(name),)
