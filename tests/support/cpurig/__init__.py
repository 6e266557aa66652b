# SPDX-License-Identifier: Apache-2.0
"""A vLLM platform for tests: the GPU model runner on a CPU.

Installing this package makes vLLM choose :class:`cpurig.platform.RigPlatform`
(entry point group ``vllm.platform_plugins``). No file of vLLM is changed. The
environment must hold ``TRITON_INTERPRET=1`` and an empty
``CUDA_VISIBLE_DEVICES`` before the first import of Triton; ``CPURIG=0`` turns
the plugin off where it is installed, and so does ``TRITON_INTERPRET=0`` (a
process in which Triton is to compile cannot use it). A vLLM without that runner
has a test platform of its own; of this package only the models and streams are
used there.
"""

import importlib.util
import os
from pathlib import Path

RUNNER = "v1/worker/gpu_model_runner.py"


def platform_class() -> str | None:
    """Answer vLLM's question for a platform; None leaves the choice to vLLM."""
    if "0" in (os.environ.get("CPURIG"), os.environ.get("TRITON_INTERPRET")):
        return None
    vllm = importlib.util.find_spec("vllm")
    if vllm is None or not (Path(str(vllm.origin)).parent / RUNNER).exists():
        return None
    return "cpurig.platform.RigPlatform"
