# SPDX-License-Identifier: Apache-2.0
"""Streams, late copies and watched host buffers for the V2 runner.

The vector clock is cpurig's. vLLM's CPU worker (``v1/worker/cpu/shm.py``) puts
placeholders that know no order where torch has streams and events; here the
stand-ins that tell right from wrong take their place again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from cpurig.copies import hook_host_reads, hook_launches, is_device
from cpurig.streams import TIMELINE, Event, Marks, Stream, _Pending, caller, late_copy, poison

_plain_copy, _plain_to = torch.Tensor.copy_, torch.Tensor.to


class _HostPending(_Pending):
    """Work that only a wait of the host ends, whichever of its threads waits."""

    def over(self, marks: Marks, waiter: int | None) -> bool:
        return waiter is not None and self.seq <= marks.get(self.stream, 0)


def set_stream(stream: Stream) -> None:
    """Stands for torch.cuda.set_stream: a stream that is left has to wait anew."""
    if TIMELINE.current is not stream:
        TIMELINE.current.ordered = False
    TIMELINE.current = stream


@contextlib.contextmanager
def on_stream(stream: Stream | None) -> Iterator[None]:
    """Stands for torch.cuda.stream."""
    outer = TIMELINE.current
    set_stream(stream or outer)
    try:
        yield
    finally:
        set_stream(outer)


def replace_stream_types() -> None:
    """Put the stand-ins where torch has, or vLLM has put, its own."""
    torch.Event = torch.cuda.Event = Event  # type: ignore[misc,assignment]
    torch.cuda.Stream = Stream  # type: ignore[misc,assignment]
    torch.cuda.current_stream = lambda *_a, **_k: TIMELINE.current  # type: ignore[assignment]
    torch.cuda.default_stream = lambda *_a, **_k: TIMELINE.default  # type: ignore[assignment]
    torch.cuda.stream = on_stream  # type: ignore[assignment]
    torch.cuda.set_stream = set_stream
    torch.cuda.synchronize = lambda *_a, **_k: TIMELINE.everything()
    torch.accelerator.synchronize = lambda *_a, **_k: TIMELINE.everything()


def _late_upload(dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """Host to device on a side stream: the data is there for who has waited."""
    stream, kept = TIMELINE.current, src.clone()
    poison(dst)
    TIMELINE.note("copy", stream.id, caller())
    TIMELINE.issue(stream, lambda: _plain_copy(dst, kept))
    return dst


@functools.cache
def hook_tensor_copies() -> None:
    """Copies on a side stream that do not block become late copies."""

    @functools.wraps(_plain_copy)
    def copy_(self, src, non_blocking=False):
        if non_blocking and TIMELINE.current is not TIMELINE.default:
            return _late_upload(self, src) if is_device(self) else late_copy(self, src)
        return _plain_copy(self, src, non_blocking)

    @functools.wraps(_plain_to)
    def to(self, *args, **kwargs):
        if kwargs.get("non_blocking") and args[:1] == ("cpu",):
            if TIMELINE.current is not TIMELINE.default:
                return late_copy(torch.empty_like(self), self)
        return _plain_to(self, *args, **kwargs)

    torch.Tensor.copy_ = copy_  # type: ignore[method-assign,assignment]
    torch.Tensor.to = to  # type: ignore[method-assign,assignment]


def _user() -> str:
    """Name of the function that asked the pool, its helpers passed over."""
    frame = sys._getframe(1)
    while "v2rig" in frame.f_code.co_filename or "buffer_utils" in frame.f_code.co_filename:
        assert frame.f_back is not None
        frame = frame.f_back
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename.rsplit('/', 1)[-1]})"


def _watch(buffer: torch.Tensor) -> None:
    """The host must leave `buffer` alone until it knows that its readers are done."""
    stream, kept, owner = TIMELINE.current, buffer.clone(), _user()

    def check() -> None:
        if not torch.equal(buffer, kept):
            TIMELINE.fault(f"{owner} changed a pooled host buffer that the device still reads")

    with TIMELINE.lock:
        stream.seq += 1
        TIMELINE.pending.append(_HostPending(stream.id, stream.seq, check))


def forget_uploads() -> None:
    """The worker starts quiet: uploads of its construction and warm-up are over."""
    with TIMELINE.lock:
        TIMELINE.pending = [p for p in TIMELINE.pending if not isinstance(p, _HostPending)]


@functools.cache
def hook_buffer_pools() -> None:
    """Pooled host buffers are read by the device for as long as a step takes."""
    from vllm.v1.worker.gpu.buffer_utils import UvaBufferPool

    def watched(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def upload(self, *args):
            out = plain(self, *args)
            _watch(self._uva_bufs[self._curr].cpu[: len(out)])
            return out

        return upload

    for name in ("copy_to_uva", "copy_chunks_to_uva"):
        setattr(UvaBufferPool, name, watched(getattr(UvaBufferPool, name)))


def uva_is_available() -> bool:
    return os.environ.get("V2RIG_UVA") != "0"


@functools.cache
def choose_buffers() -> None:
    """Buffers that host and device share, or two with copies in between."""
    from vllm.v1.worker.gpu import buffer_utils

    buffer_utils.is_uva_available = uva_is_available


def install() -> None:
    """Everything above; to be called once vLLM's CPU worker is imported."""
    replace_stream_types()
    hook_tensor_copies()
    hook_host_reads()
    hook_launches()
    hook_buffer_pools()
    choose_buffers()
