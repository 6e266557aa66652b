# SPDX-License-Identifier: Apache-2.0
"""A vLLM platform for tests: the GPU model runner on a CPU.

Installing this package makes vLLM choose :class:`cpurig.platform.RigPlatform`
(entry point group ``vllm.platform_plugins``). No file of vLLM is changed. The
environment must hold ``TRITON_INTERPRET=1`` and an empty
``CUDA_VISIBLE_DEVICES`` before the first import of Triton; ``CPURIG=0`` turns
the plugin off where it is installed.
"""

import os


def platform_class() -> str | None:
    """Answer vLLM's question for a platform; None leaves the choice to vLLM."""
    if os.environ.get("CPURIG", "1") == "0":
        return None
    return "cpurig.platform.RigPlatform"
