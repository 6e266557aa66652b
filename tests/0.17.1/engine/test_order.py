# SPDX-License-Identifier: Apache-2.0
"""Copies, waits and launches of async steps are in an order that a device can keep."""

from __future__ import annotations

import contextlib

import cpurig.platform  # noqa: F401  (puts the streams in place)
import pytest
import torch
from cpurig.copies import mark_device
from cpurig.streams import INT_POISON, TIMELINE, Event, OrderFault, Stream, recording
from engines import GPU_ASYNC, NONE, engine
from scenarios import greedy, loop, mixed

MAIN, OUTPUT = "MainThread", "WorkerAsyncOutput"
# The table in docs/features/speculative_decoding/n_gram_gpu.md.
EVERY_STEP = {"_get_valid_sampled_token_count", "synchronize_input_prep"}
FOR_PENALTIES = {"_get_draft_token_ids_cpu", "update_async_output_token_ids"}
FOR_GRAMMARS = {"_get_draft_token_ids_cpu"}


@pytest.fixture
def side() -> Stream:
    return Stream()


@pytest.fixture(autouse=True)
def no_faults_left():
    yield
    with contextlib.suppress(OrderFault):
        TIMELINE.everything()
    TIMELINE.faults.clear()


class TestTheRigItself:
    """A rig that never complains would prove nothing."""

    def test_copy_arrives_with_its_event_not_before(self, side):
        source, target = torch.tensor([1, 2]), torch.zeros(2, dtype=torch.int64)
        event = Event()
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            target.copy_(source, non_blocking=True)
            event.record()
        assert target.tolist() == [INT_POISON, INT_POISON]
        event.synchronize()
        assert target.tolist() == [1, 2]

    def test_source_written_again_before_the_event_is_seen(self, side):
        source, event = torch.tensor([1, 2]), Event()
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            target = source.to("cpu", non_blocking=True)
            event.record()
        source.fill_(9)
        event.synchronize()
        assert target.tolist() == [9, 9]

    def test_event_recorded_before_the_copy_does_not_cover_it(self, side):
        event = Event()
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            event.record()
            target = torch.tensor([1]).to("cpu", non_blocking=True)
        event.synchronize()
        assert target.item() == INT_POISON

    def test_copy_that_does_not_wait_for_its_source_is_a_fault(self, side):
        with pytest.raises(OrderFault, match="before that stream has waited"):
            with torch.cuda.stream(side):
                torch.tensor([1]).to("cpu", non_blocking=True)

    def test_host_that_changes_a_buffer_under_way_is_a_fault(self):
        import cpurig.worker  # noqa: F401  (hooks vLLM's buffers)
        from vllm.v1.utils import CpuGpuBuffer

        buffer = CpuGpuBuffer(2, dtype=torch.int32, device=torch.device("cpu"), pin_memory=False)
        event = Event()
        buffer.copy_to_gpu()
        event.record()
        buffer.np[0] = 5
        with pytest.raises(OrderFault, match="changed a reused host buffer"):
            event.synchronize()

    def test_host_reads_of_device_memory_are_put_down(self):
        tensor = torch.tensor([3, 4])
        mark_device(tensor)
        with recording() as ledger:
            tensor[1:].tolist()
        assert [entry.what for entry in ledger if entry.kind == "read"] == [
            "test_host_reads_of_device_memory_are_put_down:tolist"
        ]


@pytest.fixture(scope="module")
def started():
    with pytest.MonkeyPatch.context() as patch:
        # The kernels themselves, interpreted: their launches are to be seen.
        patch.setattr("vllm.v1.spec_decode.ngram_gpu.default_use_triton", lambda _device: True)
        with engine(GPU_ASYNC) as made:
            made.run([loop(0, 3, 30)], greedy(max_tokens=4))
            yield made


def waits(ledger, thread: str) -> set[str]:
    return {e.what for e in ledger if e.kind == "sync" and e.thread.startswith(thread)}


def test_plain_requests_wait_for_nothing_but_lengths_and_input_buffers(started):
    with recording() as ledger:
        run = started.run(mixed(21, 6, longest=40), greedy(max_tokens=20))
    assert waits(ledger, MAIN) <= EVERY_STEP
    assert waits(ledger, OUTPUT) == {"get_output"}
    reads = [e for e in ledger if e.kind == "read" and e.thread == MAIN]
    assert not reads, reads
    launches = [e.what for e in ledger if e.kind == "launch"]
    assert launches.count("_scatter_kernel") == run.steps
    # One scatter, then one lookup, in each step.
    ngram = [name for name in launches if name != "rejection_greedy_sample_kernel"]
    assert len(ngram) == 2 * run.steps
    assert set(ngram[0::2]) == {"_scatter_kernel"} and len(set(ngram[1::2])) == 1


def test_penalties_wait_for_the_tokens_they_need(started):
    with recording() as ledger:
        started.run(mixed(22, 4, longest=40), greedy(max_tokens=12, repetition_penalty=1.2))
    assert waits(ledger, MAIN) <= EVERY_STEP | FOR_PENALTIES
    assert waits(ledger, MAIN) >= FOR_PENALTIES


def test_grammars_wait_for_the_drafts(started):
    from vllm.sampling_params import StructuredOutputsParams

    constraint = StructuredOutputsParams(regex="(ab|cd){4,8}")
    with recording() as ledger:
        started.run(
            mixed(23, 3, longest=40),
            greedy(max_tokens=12, ignore_eos=False, structured_outputs=constraint),
        )
    assert waits(ledger, MAIN) <= EVERY_STEP | FOR_GRAMMARS
    assert waits(ledger, MAIN) >= FOR_GRAMMARS


@pytest.mark.parametrize(
    "mode, event",
    [
        (GPU_ASYNC, "valid_sampled_token_count_event"),
        # With speculation the wait for the counts covers that for the inputs.
        (NONE, "prepare_inputs_event"),
    ],
)
def test_a_missing_wait_is_found(mode, event, monkeypatch):
    """Take one of the step's waits away: the rig must notice."""
    work = [loop(3, 3, 20), loop(4, 5, 20)], greedy(max_tokens=12)
    with engine(mode, async_scheduling=True) as broken:
        right = broken.run(*work).tokens
        monkeypatch.setattr(getattr(broken.runner, event), "synchronize", lambda: None)
        try:
            noticed = broken.run(*work).tokens != right
        except Exception:  # poison shows in many ways
            noticed = True
        assert noticed
