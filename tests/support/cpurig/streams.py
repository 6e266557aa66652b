# SPDX-License-Identifier: Apache-2.0
"""Streams and events for a machine without any, which still tell right from wrong.

Work "on the device" runs at once here, so a missing wait would never show. Three
things bring it back:

* A copy issued on a side stream is *late*: its destination is filled with poison
  and gets the data only when the host (or another stream) has waited for it.
* The source of a host-to-device copy is remembered; it must still be the same when
  the host learns that the copy is over.
* Every record, wait, copy and launch goes into a ledger while a test records one.

The order is kept as a vector clock: each stream counts its work and knows, for
every other stream, up to which work it has waited.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

INT_POISON = -7_654_321
MAX_PENDING = 4096

Marks = dict[int, int]


class OrderFault(AssertionError):
    """The order of copies, waits and launches would be a race on a device."""


@dataclass(frozen=True)
class Entry:
    """One line of the ledger: what happened, on which stream, asked for by whom."""

    kind: str  # launch, copy, record, wait_stream, wait_event, sync, read
    stream: int
    what: str
    thread: str


@dataclass
class _Pending:
    stream: int
    seq: int
    run: Callable[[], None]
    # Set where only a wait of this host thread counts: what a stream or another
    # thread has waited for says nothing about when this one goes on.
    thread: int | None = None

    def over(self, marks: Marks, waiter: int | None) -> bool:
        """Whether a wait for `marks` by a thread (None: by a stream) ends this work."""
        mine = self.thread in (None, waiter)
        return mine and self.seq <= marks.get(self.stream, 0)


class Timeline:
    """The vector clock of one process, its late copies and its ledger."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pending: list[_Pending] = []
        self.ledger: list[Entry] | None = None
        self.faults: list[str] = []
        self._streams = 0
        self._local = threading.local()
        self.default = Stream(timeline=self)

    def new_stream_id(self) -> int:
        with self.lock:
            self._streams += 1
            return self._streams - 1

    @property
    def current(self) -> Stream:
        return getattr(self._local, "stream", self.default)

    @current.setter
    def current(self, stream: Stream) -> None:
        self._local.stream = stream

    def note(self, kind: str, stream: int, what: str) -> None:
        """Append to the ledger if a test records one."""
        if self.ledger is not None:
            thread = threading.current_thread().name
            self.ledger.append(Entry(kind, stream, what, thread))

    def fault(self, message: str) -> None:
        """Keep the fault for the test's end and stop the step that made it."""
        self.faults.append(message)
        raise OrderFault(message)

    def issue(self, stream: Stream, run: Callable[[], None], thread: int | None = None) -> None:
        """Put work on `stream` that is run when someone has waited for it."""
        with self.lock:
            stream.seq += 1
            self.pending.append(_Pending(stream.id, stream.seq, run, thread))
            if len(self.pending) > MAX_PENDING:
                with torch.inference_mode():
                    self.pending.pop(0).run()

    def learn(self, marks: Marks, by_stream: bool = False) -> None:
        """The host or a stream knows that the work up to `marks` is over."""
        waiter = None if by_stream else threading.get_ident()
        with self.lock:
            due = [p for p in self.pending if p.over(marks, waiter)]
            if not due:
                return
            self.pending = [p for p in self.pending if p not in due]
            with torch.inference_mode():
                for work in due:
                    work.run()

    def everything(self) -> None:
        """A full device synchronisation."""
        with self.lock:
            due, self.pending = self.pending, []
            with torch.inference_mode():
                for work in due:
                    work.run()


class Stream:
    """Stands for torch.cuda.Stream."""

    cuda_stream = 0
    device = torch.device("cpu")

    def __init__(self, *_args, timeline: Timeline | None = None, **_kwargs) -> None:
        self._timeline = timeline or TIMELINE
        self.id = self._timeline.new_stream_id()
        self.seq = 0
        self.knows: Marks = {}
        # True once this stream waited for another since it became the current one.
        self.ordered = False

    @property
    def marks(self) -> Marks:
        return {**self.knows, self.id: self.seq}

    def _wait(self, marks: Marks) -> None:
        for stream, seq in marks.items():
            self.knows[stream] = max(self.knows.get(stream, 0), seq)
        self.ordered = True
        self._timeline.learn(marks, by_stream=True)

    def wait_stream(self, other: Stream) -> None:
        # Work of a default stream is done at once: its clock needs no learning,
        # but the wait itself must be there.
        self._timeline.note("wait_stream", self.id, f"{other.id}")
        self._wait(other.marks)

    def wait_event(self, event: Event) -> None:
        self._timeline.note("wait_event", self.id, caller())
        self._wait(event.marks)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        self._timeline.note("sync", self.id, caller())
        self._timeline.learn(self.marks)

    def query(self) -> bool:
        self._timeline.learn(self.marks)
        return True

    def __enter__(self) -> Stream:
        self._outer = self._timeline.current
        self._timeline.current = self
        return self

    def __exit__(self, *_exc) -> None:
        self._timeline.current = self._outer


class Event:
    """Stands for torch.Event and torch.cuda.Event."""

    def __init__(self, *_args, **_kwargs) -> None:
        self.marks: Marks = {}
        self._stream = 0

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or TIMELINE.current
        self.marks = stream.marks
        self._stream = stream.id
        TIMELINE.note("record", stream.id, caller())

    def wait(self, stream: Stream | None = None) -> None:
        (stream or TIMELINE.current).wait_event(self)

    def synchronize(self) -> None:
        TIMELINE.note("sync", self._stream, caller())
        TIMELINE.learn(self.marks)

    def query(self) -> bool:
        TIMELINE.learn(self.marks)
        return True

    def elapsed_time(self, _other: Event) -> float:
        return 0.0


def caller() -> str:
    """Name of the function outside this package that asked."""
    frame = sys._getframe(1)
    while frame is not None and "cpurig" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame.f_code.co_name if frame is not None else "?"


TIMELINE = Timeline()


@contextlib.contextmanager
def on_stream(stream: Stream | None) -> Iterator[None]:
    """Stands for torch.cuda.stream."""
    if stream is None:
        yield
        return
    outer = TIMELINE.current
    stream.ordered = False
    TIMELINE.current = stream
    try:
        yield
    finally:
        TIMELINE.current = outer


@contextlib.contextmanager
def recording() -> Iterator[list[Entry]]:
    """Keep a ledger inside the block; faults seen in it are raised at the end."""
    ledger: list[Entry] = []
    before, TIMELINE.ledger = TIMELINE.ledger, ledger
    faults = len(TIMELINE.faults)
    try:
        yield ledger
    finally:
        TIMELINE.ledger = before
    if len(TIMELINE.faults) > faults:
        raise OrderFault("; ".join(TIMELINE.faults[faults:]))


def poison(tensor: torch.Tensor) -> None:
    """Fill with a value that no reader can mistake for data."""
    if tensor.dtype.is_floating_point:
        tensor.fill_(float("nan"))
    elif tensor.dtype == torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(max(INT_POISON, torch.iinfo(tensor.dtype).min))


def late_copy(dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """Device to host on the current side stream: poison now, the data later."""
    stream = TIMELINE.current
    if not stream.ordered:
        TIMELINE.fault(
            f"{caller()} copies on stream {stream.id} before that stream has "
            "waited for the work that fills the source"
        )
    poison(dst)
    TIMELINE.note("copy", stream.id, caller())
    TIMELINE.issue(stream, lambda: _plain_copy(dst, src))
    return dst


def watched_source(src: torch.Tensor, what: str) -> None:
    """Host to device on the current stream: `src` must stay until it is over."""
    stream = TIMELINE.current
    kept = src.clone()

    def check() -> None:
        if not torch.equal(src, kept):
            TIMELINE.fault(f"the host changed {what} while its copy was under way")

    TIMELINE.note("copy", stream.id, what)
    TIMELINE.issue(stream, check, threading.get_ident())


_plain_copy = torch.Tensor.copy_
