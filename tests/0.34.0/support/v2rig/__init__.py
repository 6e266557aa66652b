# SPDX-License-Identifier: Apache-2.0
"""A vLLM platform for tests: the V2 GPU model runner on a CPU.

Installing this package makes vLLM choose :class:`v2rig.platform.RigPlatform`
(entry point group ``vllm.platform_plugins``). vLLM needs no compiled operator
and no file of it is changed. The environment must hold ``TRITON_INTERPRET=1``
and an empty ``CUDA_VISIBLE_DEVICES`` before the first import of Triton;
``V2RIG=0`` or ``TRITON_INTERPRET=0`` turns the plugin off where it is installed.
``V2RIG_UVA=0`` takes unified virtual addressing away: the runner then keeps
explicit copies of its host buffers, as it does where a device has none.
"""

import os


def platform_class() -> str | None:
    """Answer vLLM's question for a platform; None leaves the choice to vLLM."""
    if "0" in (os.environ.get("V2RIG"), os.environ.get("TRITON_INTERPRET")):
        return None
    return "v2rig.platform.RigPlatform"
