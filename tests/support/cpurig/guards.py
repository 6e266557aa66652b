# SPDX-License-Identifier: Apache-2.0
"""Known gaps of third-party code on a CPU, each closed in one place."""

from __future__ import annotations

import dataclasses
import functools
import os

import torch

# Each `let_` function wraps its target once, however often it is called.


def require_environment() -> None:
    """Triton must interpret, and must not look for a driver."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("cpurig needs TRITON_INTERPRET=1 before Triton is imported")
    if os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        raise RuntimeError("cpurig needs CUDA_VISIBLE_DEVICES set and empty")


@functools.cache
def let_pin_memory_pass() -> None:
    """vLLM's grammar masks ask for pinned memory without looking for a device."""
    plain = torch.tensor

    @functools.wraps(plain)
    def tensor(*args, pin_memory=False, **kwargs):
        return plain(*args, **kwargs)

    torch.tensor = tensor  # type: ignore[assignment]


@functools.cache
def let_interpreter_take_bools() -> None:
    """Triton 3.6 cannot turn a plain Python bool argument into a value."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    plain = interpreter._implicit_cvt

    def convert(arg):
        if isinstance(arg, (bool, np.bool_)):
            handle = interpreter.TensorHandle(np.array([arg], dtype=np.bool_), tl.int1)
            return tl.tensor(handle, tl.int1)
        return plain(arg)

    interpreter._implicit_cvt = convert


@functools.cache
def skip_interpreted_overflow_checks() -> None:
    """They double the time of a kernel; kernels' own tests keep them."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


@functools.cache
def patch_language_once_a_launch() -> None:
    """The interpreter patches triton.language anew for each call of a jitted function.

    In a kernel that calls others that is nearly half of the time.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    plain, languages = interpreter._patch_lang, (tl, tl.core)
    # What newer versions have to restore; there is nothing where nothing was patched.
    nothing = getattr(interpreter, "_LangPatchScope", type(None))()

    def patch(fn):
        seen = [m for m in fn.__globals__.values() if any(m is one for one in languages)]
        if seen and not any(tl.core.is_builtin(module.load) for module in seen):
            return nothing
        return plain(fn)

    interpreter._patch_lang = patch


@functools.cache
def let_xgrammar_take_index_tensors() -> None:
    """Its CPU kernel wants a list where its CUDA kernel also takes a tensor."""
    import xgrammar

    plain = xgrammar.apply_token_bitmask_inplace

    @functools.wraps(plain)
    def apply(logits, bitmask, *args, indices=None, **kwargs):
        if isinstance(indices, torch.Tensor):
            indices = indices.tolist()
        return plain(logits, bitmask, *args, indices=indices, **kwargs)

    xgrammar.apply_token_bitmask_inplace = apply
