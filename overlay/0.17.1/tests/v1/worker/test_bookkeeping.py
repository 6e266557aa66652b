# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""GPUModelRunner._bookkeeping_sync against the loop over rows it replaced.

Both run on the same random batch, and every array, every request's list and
everything that is returned must be the same. No device is needed: the runner
has just the state that the method reads.
"""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.token_writer import SampledTokensBuffer, TokenWriter

pytestmark = pytest.mark.skip_global_cleanup

VOCAB_SIZE = 100
MAX_MODEL_LEN = 40
MAX_SPEC_TOKENS = 8
CPU = torch.device("cpu")


class FakeGenerator:
    """Has the offset that CPU generators lack."""

    def __init__(self) -> None:
        self.offset = 400

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset


class RejectionSampler:
    """v0.17.1's way from the sampled ids to lists, for the reference."""

    @staticmethod
    def parse_output(
        output_token_ids: torch.Tensor,
        vocab_size: int,
        discard_req_indices,
        logprobs_tensors: LogprobsTensors | None,
    ):
        output_token_ids_np = output_token_ids.cpu().numpy()
        # Create mask for valid tokens.
        valid_mask = (output_token_ids_np != -1) & (output_token_ids_np < vocab_size)
        output_logprobs = None
        if logprobs_tensors is not None:
            cu_num_tokens = [0] + valid_mask.sum(axis=1).cumsum().tolist()
            filtered_tensors = logprobs_tensors.filter(valid_mask.flatten())
            output_logprobs = filtered_tensors.tolists(cu_num_tokens)

        if len(discard_req_indices) > 0:
            valid_mask[discard_req_indices] = False
        outputs = [
            row[valid_mask[i]].tolist() for i, row in enumerate(output_token_ids_np)
        ]
        return outputs, output_logprobs


def reference_bookkeeping(self, sampler_output: SamplerOutput):
    """The part of v0.17.1's `_bookkeeping_sync` that updates the state."""
    num_reqs = self.input_batch.num_reqs
    discard_sampled_tokens_req_indices = np.nonzero(
        self.discard_request_mask.np[:num_reqs]
    )[0]
    for i in discard_sampled_tokens_req_indices:
        gen = self.input_batch.generators.get(int(i))
        if gen is not None:
            gen.set_offset(gen.get_offset() - 4)

    # Copy some objects so they don't get modified after returning.
    # This is important when using async scheduling.
    req_ids_output_copy = self.input_batch.req_ids.copy()
    req_id_to_index_output_copy = self.input_batch.req_id_to_index.copy()

    num_sampled_tokens = sampler_output.sampled_token_ids.shape[0]
    sampled_token_ids = sampler_output.sampled_token_ids
    logprobs_tensors = sampler_output.logprobs_tensors
    invalid_req_indices = []
    logprobs_lists = None
    if not self.use_async_scheduling:
        # Get the valid generated tokens.
        max_gen_len = sampled_token_ids.shape[-1]
        if max_gen_len == 1:
            # No spec decode tokens.
            valid_sampled_token_ids = self._to_list(sampled_token_ids)
            # Mask out the sampled tokens that should not be sampled.
            for i in discard_sampled_tokens_req_indices:
                valid_sampled_token_ids[int(i)].clear()

            if logprobs_tensors is not None:
                logprobs_lists = logprobs_tensors.tolists()
        else:
            # Includes spec decode tokens.
            valid_sampled_token_ids, logprobs_lists = RejectionSampler.parse_output(
                sampled_token_ids,
                self.input_batch.vocab_size,
                discard_sampled_tokens_req_indices,
                logprobs_tensors=logprobs_tensors,
            )
    else:
        valid_sampled_token_ids = []
        invalid_req_indices = discard_sampled_tokens_req_indices.tolist()
        invalid_req_indices_set = set(invalid_req_indices)

        # Cache the sampled tokens on the GPU and avoid CPU sync.
        # These will be copied into input_ids in the next step
        # when preparing inputs.
        # With spec decoding, this is done in propose_draft_token_ids().
        if self.input_batch.prev_sampled_token_ids is None:
            assert sampled_token_ids.shape[-1] == 1
            self.input_batch.prev_sampled_token_ids = sampled_token_ids
        self.input_batch.prev_req_id_to_index = {
            req_id: i
            for i, req_id in enumerate(self.input_batch.req_ids)
            if i not in invalid_req_indices_set
        }

    # Cache the sampled tokens in the model runner, so that the scheduler
    # doesn't need to send them back.
    # NOTE(woosuk): As an exception, when using PP, the scheduler sends
    # the sampled tokens back, because there's no direct communication
    # between the first-stage worker and the last-stage worker.
    req_ids = self.input_batch.req_ids
    for req_idx in range(num_sampled_tokens):
        if self.use_async_scheduling:
            sampled_ids = [-1] if req_idx not in invalid_req_indices_set else None
        else:
            sampled_ids = valid_sampled_token_ids[req_idx]

        num_sampled_ids: int = len(sampled_ids) if sampled_ids else 0

        if not sampled_ids:
            continue

        start_idx = self.input_batch.num_tokens_no_spec[req_idx]
        end_idx = start_idx + num_sampled_ids
        assert end_idx <= self.max_model_len, (
            "Sampled token IDs exceed the max model length. "
            f"Total number of tokens: {end_idx} > max_model_len: "
            f"{self.max_model_len}"
        )

        self.input_batch.token_ids_cpu[req_idx, start_idx:end_idx] = sampled_ids
        self.input_batch.is_token_ids[req_idx, start_idx:end_idx] = True
        self.input_batch.num_tokens_no_spec[req_idx] = end_idx

        req_id = req_ids[req_idx]
        req_state = self.requests[req_id]
        req_state.output_token_ids.extend(sampled_ids)

    return (
        logprobs_lists,
        valid_sampled_token_ids,
        req_ids_output_copy,
        req_id_to_index_output_copy,
        invalid_req_indices,
    )


def make_runner(max_num_reqs: int, use_async: bool) -> GPUModelRunner:
    runner = GPUModelRunner.__new__(GPUModelRunner)
    runner.use_async_scheduling = use_async
    runner.max_model_len = MAX_MODEL_LEN
    runner.requests = {}
    runner.num_prompt_logprobs = {}
    runner.input_batch = InputBatch(
        max_num_reqs=max_num_reqs,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=64,
        device=CPU,
        pin_memory=False,
        vocab_size=VOCAB_SIZE,
        block_sizes=[16],
        kernel_block_sizes=[16],
    )
    runner.discard_request_mask = SimpleNamespace(np=np.zeros(max_num_reqs, dtype=bool))
    runner.sampled_tokens_buffer = SampledTokensBuffer(
        max_num_reqs, 1 + MAX_SPEC_TOKENS, pin_memory=False
    )
    runner.transfer_event = SimpleNamespace(
        record=lambda: None, synchronize=lambda: None
    )
    runner.token_writer = TokenWriter(max_num_reqs, MAX_MODEL_LEN)
    # Of the reference.
    runner._to_list = lambda sampled_token_ids: sampled_token_ids.tolist()
    return runner


def add_request(runner: GPUModelRunner, req_id: str, num_prompt: int, num_out: int):
    rng = np.random.default_rng(len(runner.requests))
    request = CachedRequestState(
        req_id=req_id,
        prompt_token_ids=rng.integers(0, VOCAB_SIZE, num_prompt).tolist(),
        mm_features=[],
        sampling_params=SamplingParams(),
        generator=None,
        block_ids=([0],),
        num_computed_tokens=0,
        output_token_ids=rng.integers(0, VOCAB_SIZE, num_out).tolist(),
    )
    runner.requests[req_id] = request
    return runner.input_batch.add_request(request)


def fill_batch(
    rng: np.random.Generator, runner: GPUModelRunner, num_reqs: int, num_free: int
) -> None:
    """Add requests with room for num_free tokens, some for no more, some with
    a generator of their own. Reorder them."""
    for i in range(num_reqs):
        length = MAX_MODEL_LEN - num_free
        if rng.random() < 0.8:
            length = int(rng.integers(1, length, endpoint=True))
        num_prompt = int(rng.integers(1, length, endpoint=True))
        add_request(runner, f"req-{i}", num_prompt, length - num_prompt)
        if rng.random() < 0.2:
            runner.input_batch.generators[i] = FakeGenerator()
    for _ in range(min(num_reqs // 2, 20)):
        i, j = rng.choice(num_reqs, 2, replace=False).tolist()
        runner.input_batch.swap_states(i, j)


def make_sampler_output(
    rng: np.random.Generator, num_reqs: int, width: int, with_logprobs: bool
) -> SamplerOutput:
    """Tokens, then placeholders; a few ids outside of the vocabulary."""
    sampled = rng.integers(0, VOCAB_SIZE, (num_reqs, width), dtype=np.int32)
    if width > 1:
        num_sampled = rng.integers(0, width, (num_reqs, 1), endpoint=True)
        sampled[np.arange(width) >= num_sampled] = -1
        sampled[rng.random(sampled.shape) < 0.03] = VOCAB_SIZE
    logprobs = None
    if with_logprobs:
        num_tokens = num_reqs * width
        logprobs = LogprobsTensors(
            torch.from_numpy(rng.integers(0, VOCAB_SIZE, (num_tokens, 3))),
            torch.from_numpy(rng.random((num_tokens, 3), dtype=np.float32)),
            torch.from_numpy(rng.integers(0, VOCAB_SIZE, num_tokens)),
        )
    return SamplerOutput(torch.from_numpy(sampled), logprobs)


def bookkeeping(runner: GPUModelRunner, sampler_output: SamplerOutput):
    (
        num_nans_in_logits,
        logprobs_lists,
        valid_sampled_token_ids,
        prompt_logprobs_dict,
        req_ids,
        req_id_to_index,
        invalid_req_indices,
    ) = runner._bookkeeping_sync(
        SimpleNamespace(num_scheduled_tokens={}),
        sampler_output,
        None,
        torch.empty(0),
        0,
        None,
    )
    assert num_nans_in_logits == {} and prompt_logprobs_dict == {}
    return (
        logprobs_lists,
        valid_sampled_token_ids,
        req_ids,
        req_id_to_index,
        invalid_req_indices,
    )


def assert_same_state(actual: GPUModelRunner, expected: GPUModelRunner) -> None:
    for name in ("token_ids_cpu", "is_token_ids", "num_tokens_no_spec"):
        np.testing.assert_array_equal(
            getattr(actual.input_batch, name),
            getattr(expected.input_batch, name),
            err_msg=name,
        )
    for req_id, request in expected.requests.items():
        assert actual.requests[req_id].output_token_ids == request.output_token_ids
    for name in ("req_ids", "req_id_to_index", "prev_req_id_to_index"):
        assert getattr(actual.input_batch, name) == getattr(expected.input_batch, name)
    offsets = [
        {i: gen.offset for i, gen in runner.input_batch.generators.items()}
        for runner in (actual, expected)
    ]
    assert offsets[0] == offsets[1]


def assert_same_output(actual, expected) -> None:
    logprobs, *rest = actual
    expected_logprobs, *expected_rest = expected
    assert rest == expected_rest
    # Plain ints, as the engine sends them to other processes.
    assert all(type(t) is int for tokens in rest[0] for t in tokens)
    assert (logprobs is None) == (expected_logprobs is None)
    if logprobs is not None:
        *arrays, cu_num_tokens = logprobs
        *expected_arrays, expected_cu_num_tokens = expected_logprobs
        for a, b in zip(arrays, expected_arrays):
            np.testing.assert_array_equal(a, b)
        assert cu_num_tokens == expected_cu_num_tokens


@pytest.mark.parametrize("mode", ["sync", "spec", "async"])
@pytest.mark.parametrize("num_reqs", [0, 1, 2, 3, 16, 64, 257, 1024])
def test_same_as_loop(mode: str, num_reqs: int):
    rng = np.random.default_rng(num_reqs)
    num_rounds = 12 if num_reqs < 100 else 4
    for round_ in range(num_rounds):
        width = 1 if mode != "spec" else int(rng.integers(2, 10))
        fraction = rng.choice([0.0, 0.01, 0.1, 0.5, 1.0])
        max_num_reqs = num_reqs + int(rng.integers(1, 4))
        runner = make_runner(max_num_reqs, mode == "async")
        fill_batch(rng, runner, num_reqs, 3 * width)
        expected_runner = copy.deepcopy(runner)

        # More than one step, since the second one reads what the first wrote.
        for _ in range(3):
            discard = rng.random(max_num_reqs) >= fraction
            output = make_sampler_output(rng, num_reqs, width, round_ % 2 == 1)
            for r in (runner, expected_runner):
                r.discard_request_mask.np[:] = discard
                r.input_batch.prev_sampled_token_ids = None
            expected = reference_bookkeeping(expected_runner, copy.deepcopy(output))
            actual = bookkeeping(runner, output)

            assert_same_output(actual, expected)
            assert_same_state(runner, expected_runner)
            prev = runner.input_batch.prev_sampled_token_ids
            assert prev is (output.sampled_token_ids if mode == "async" else None)


def test_returned_objects_are_copies():
    """What was returned must not change in the next step (async scheduling)."""
    runner = make_runner(4, use_async=True)
    fill_batch(np.random.default_rng(0), runner, 3, 2)
    _, _, req_ids, req_id_to_index, _ = bookkeeping(
        runner, make_sampler_output(np.random.default_rng(0), 3, 1, False)
    )
    before = req_ids.copy(), req_id_to_index.copy()
    prev_before = runner.input_batch.prev_req_id_to_index.copy()
    add_request(runner, "new", 2, 0)
    assert (req_ids, req_id_to_index) == before
    assert runner.input_batch.prev_req_id_to_index == prev_before
    runner.input_batch.remove_request("req-1")
    assert (req_ids, req_id_to_index) == before


@pytest.mark.parametrize("mode", ["sync", "spec", "async"])
def test_row_too_long_changes_nothing(mode: str):
    width = 3 if mode == "spec" else 1
    runner = make_runner(6, mode == "async")
    fill_batch(np.random.default_rng(0), runner, 4, 2 * width)
    row = add_request(runner, "long", MAX_MODEL_LEN - width + 1, 0)
    assert row == 4
    before = copy.deepcopy(runner)
    output = make_sampler_output(np.random.default_rng(0), 5, width, False)
    output.sampled_token_ids[row] = 7

    with pytest.raises(AssertionError, match=r"max model length.*\(request long\)"):
        bookkeeping(runner, output)
    before.input_batch.prev_req_id_to_index = runner.input_batch.prev_req_id_to_index
    assert_same_state(runner, before)


class FirstRank:
    """A pipeline's first rank: it samples nothing."""

    is_last_rank = False
    is_first_rank = True
    world_size = 2
    rank = 0
    last_rank = 1
    device_group = None


@pytest.fixture
def first_rank(monkeypatch):
    monkeypatch.setattr(gpu_model_runner, "get_pp_group", FirstRank)


def make_first_rank_runner(use_async: bool) -> GPUModelRunner:
    runner = make_runner(4, use_async)
    runner.device = CPU
    runner.encoder_cache = {}
    runner.is_pooling_model = False
    runner.uses_mrope = False
    runner.uses_xdrope_dim = 0
    runner.valid_sampled_token_count_event = None
    runner.kv_cache_config = SimpleNamespace(kv_cache_groups=[])
    return runner


def schedule(
    runner: GPUModelRunner,
    num_computed_tokens: dict[str, int],
    new_token_ids: list[list[int]],
    num_scheduled_tokens: int = 1,
) -> SchedulerOutput:
    requests = [runner.requests[req_id] for req_id in num_computed_tokens]
    cached = CachedRequestData.make_empty()
    cached.req_ids = list(num_computed_tokens)
    cached.new_token_ids = new_token_ids
    cached.new_block_ids = [None] * len(requests)
    cached.num_computed_tokens = list(num_computed_tokens.values())
    cached.num_output_tokens = [len(r.output_token_ids) for r in requests]
    output = SchedulerOutput.make_empty()
    output.scheduled_cached_reqs = cached
    output.num_scheduled_tokens = dict.fromkeys(
        num_computed_tokens, num_scheduled_tokens
    )
    return output


def test_first_rank_takes_tokens_from_scheduler(first_rank):
    """One token (decode), several (speculation) and none (nothing sampled)."""
    runner = make_first_rank_runner(use_async=False)
    for req_id in ("one", "many", "chunk"):
        add_request(runner, req_id, 5, 0)
    before = runner.input_batch.token_ids_cpu.copy()

    runner._update_states(
        schedule(
            runner,
            {"one": 5, "many": 5, "chunk": 2},
            [[41], [42, 43, 44], before[2, 2:4].tolist()],
        )
    )

    expected = before.copy()
    expected[0, 5] = 41
    expected[1, 5:8] = [42, 43, 44]
    np.testing.assert_array_equal(runner.input_batch.token_ids_cpu, expected)
    assert runner.input_batch.num_tokens_no_spec.tolist() == [6, 8, 4, 0]
    outputs = [runner.requests[r].output_token_ids for r in ("one", "many", "chunk")]
    assert outputs == [[41], [42, 43, 44], []]

    runner._update_states(schedule(runner, {"one": 6, "many": 8, "chunk": 4}, []))
    np.testing.assert_array_equal(runner.input_batch.token_ids_cpu, expected)
    assert runner.input_batch.num_tokens_no_spec.tolist() == [6, 8, 4, 0]


def test_replaced_output_list_is_noticed(first_rank):
    """Bookkeeping extends the lists held by the input batch, so a request that
    got another list would silently stop seeing its own tokens."""
    runner = make_first_rank_runner(use_async=False)
    add_request(runner, "req", 5, 0)
    runner._update_states(schedule(runner, {"req": 5}, [[41]]))

    request = runner.requests["req"]
    request.output_token_ids = request.output_token_ids.copy()
    with pytest.raises(AssertionError, match="req: output_token_ids was replaced"):
        runner._update_states(schedule(runner, {"req": 6}, [[42]]))


def test_first_rank_receives_tokens_from_last_rank(first_rank, monkeypatch):
    """Async scheduling: a placeholder for each row that is not discarded."""
    monkeypatch.setattr(torch.distributed, "broadcast", lambda *args, **kwargs: None)
    runner = make_first_rank_runner(use_async=True)
    for i in range(3):
        add_request(runner, f"req-{i}", 5, i)
    outputs = [list(runner.requests[f"req-{i}"].output_token_ids) for i in range(3)]
    runner.discard_request_mask.np[1] = True

    runner._pp_receive_prev_sampled_token_ids_to_input_batch()

    assert runner.input_batch.prev_req_id_to_index == {"req-0": 0, "req-2": 2}
    assert runner.input_batch.prev_sampled_token_ids.shape == (3, 1)
    assert [runner.requests[f"req-{i}"].output_token_ids for i in range(3)] == [
        outputs[0] + [-1],
        outputs[1],
        outputs[2] + [-1],
    ]
