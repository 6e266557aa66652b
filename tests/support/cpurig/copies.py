# SPDX-License-Identifier: Apache-2.0
"""Hooks that turn torch's and vLLM's copies and reads into ledger entries."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from cpurig.streams import (
    TIMELINE,
    Event,
    Stream,
    caller,
    late_copy,
    on_stream,
    watched_source,
)

# Storage address -> a tensor that stands for a device buffer.
_device: dict[int, weakref.ref] = {}


def mark_device(value: Any) -> None:
    """Say that these tensors stand for device memory: host reads get recorded."""
    if isinstance(value, torch.Tensor):
        if value.numel():
            _device[value.untyped_storage().data_ptr()] = weakref.ref(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            mark_device(item)


def is_device(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies in memory that was marked and is still alive."""
    if type(tensor) is not torch.Tensor or not tensor.numel():
        return False
    address = tensor.untyped_storage().data_ptr()
    known = _device.get(address)
    if known is None:
        return False
    if known() is None:
        del _device[address]
        return False
    return True


def replace_stream_types() -> None:
    """Put the stand-ins where torch has its device streams and events."""
    torch.Event = torch.cuda.Event = Event  # type: ignore[misc,assignment]
    torch.cuda.Stream = Stream  # type: ignore[misc,assignment]
    torch.cuda.current_stream = lambda *_a, **_k: TIMELINE.current
    torch.cuda.default_stream = lambda *_a, **_k: TIMELINE.default
    torch.cuda.stream = on_stream  # type: ignore[assignment]
    torch.cuda.synchronize = lambda *_a, **_k: TIMELINE.everything()


def _on_side_stream() -> bool:
    return TIMELINE.current is not TIMELINE.default


@functools.cache
def hook_tensor_copies() -> None:
    """Non-blocking copies on a side stream become late copies."""
    plain_copy, plain_to = torch.Tensor.copy_, torch.Tensor.to

    @functools.wraps(plain_copy)
    def copy_(self, src, non_blocking=False):
        if non_blocking and _on_side_stream():
            return late_copy(self, src)
        return plain_copy(self, src, non_blocking)

    @functools.wraps(plain_to)
    def to(self, *args, **kwargs):
        if kwargs.get("non_blocking") and _on_side_stream() and args[:1] == ("cpu",):
            return late_copy(torch.empty_like(self), self)
        return plain_to(self, *args, **kwargs)

    torch.Tensor.copy_ = copy_  # type: ignore[method-assign,assignment]
    torch.Tensor.to = to  # type: ignore[method-assign,assignment]


@functools.cache
def hook_host_reads() -> None:
    """Reads of a marked device buffer by the host are waits: put them down."""
    for name in ("tolist", "item", "numpy", "cpu", "__bool__", "__int__", "__index__"):
        plain = getattr(torch.Tensor, name)

        @functools.wraps(plain)
        def read(self, *args, _plain=plain, _name=name, **kwargs):
            if is_device(self):
                TIMELINE.note("read", TIMELINE.current.id, f"{caller()}:{_name}")
            if _name == "cpu":
                # On a device this waits for all earlier work of the stream.
                TIMELINE.learn(TIMELINE.current.marks)
            return _plain(self, *args, **kwargs)

        setattr(torch.Tensor, name, read)


@functools.cache
def hook_buffer_uploads() -> None:
    """Uploads from the runner's reused host buffers get their source watched."""
    import vllm.v1.utils as v1_utils
    import vllm.v1.worker.gpu_input_batch as input_batch

    buffer = v1_utils.CpuGpuBuffer
    plain_upload, plain_slice = buffer.copy_to_gpu, v1_utils.copy_slice

    @functools.wraps(plain_upload)
    def copy_to_gpu(self, n=None):
        watched_source(self.cpu if n is None else self.cpu[:n], "a reused host buffer")
        return plain_upload(self, n)

    @functools.wraps(plain_slice)
    def copy_slice(from_tensor, to_tensor, length):
        watched_source(from_tensor[:length], "sampling parameters on the host")
        return plain_slice(from_tensor, to_tensor, length)

    buffer.copy_to_gpu = copy_to_gpu
    v1_utils.copy_slice = input_batch.copy_slice = copy_slice


@functools.cache
def hook_launches() -> None:
    """Launches of interpreted Triton kernels go into the ledger by name."""
    from triton.runtime import interpreter

    executor = interpreter.GridExecutor
    plain = executor.__call__

    @functools.wraps(plain)
    def launch(self, *args, **kwargs):
        TIMELINE.note("launch", TIMELINE.current.id, self.fn.__name__)
        return plain(self, *args, **kwargs)

    executor.__call__ = launch
