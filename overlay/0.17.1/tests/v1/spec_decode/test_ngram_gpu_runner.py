# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""How the engine and the model runner use the ngram_gpu proposer."""

from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from vllm.config import ModelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
from vllm.model_executor.warmup import kernel_warmup as warmup
from vllm.platforms import current_platform
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.spec_decode.ngram_gpu import NgramDrafts
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu_model_runner import ExecuteModelState, GPUModelRunner


def make_config(method: str, async_scheduling: bool | None) -> VllmConfig:
    model_config = ModelConfig(model="facebook/opt-125m", dtype="float16")
    return VllmConfig(
        model_config=model_config,
        scheduler_config=SchedulerConfig(
            max_model_len=2048,
            is_encoder_decoder=False,
            async_scheduling=async_scheduling,
        ),
        speculative_config=SpeculativeConfig(method=method, num_speculative_tokens=3),
    )


@pytest.fixture
def any_platform(monkeypatch):
    """Some platforms turn async scheduling off whatever the method."""
    monkeypatch.setattr(
        type(current_platform),
        "check_and_update_config",
        classmethod(lambda cls, config: None),
    )


@pytest.mark.parametrize(
    "method, asked, expected",
    [
        ("ngram_gpu", None, True),
        ("ngram_gpu", True, True),
        ("ngram_gpu", False, False),
        ("ngram", None, False),
    ],
)
def test_async_scheduling_default(any_platform, method, asked, expected):
    config = make_config(method, asked)
    assert config.scheduler_config.async_scheduling is expected


def test_async_scheduling_refused_for_host_ngram(any_platform):
    with pytest.raises(ValueError, match="async scheduling is only supported"):
        make_config("ngram", True)


def make_runner(**attributes) -> MagicMock:
    runner = MagicMock(spec=GPUModelRunner)
    for name, value in attributes.items():
        setattr(runner, name, value)
    return runner


def make_sampling_runner(max_seq_len: int, **attributes) -> MagicMock:
    """A runner that has executed a step and has not sampled yet."""
    return make_runner(
        execute_model_state=ExecuteModelState(
            scheduler_output=MagicMock(),
            logits=MagicMock(),
            spec_decode_metadata=None,
            spec_decode_common_attn_metadata=MagicMock(max_seq_len=max_seq_len),
            hidden_states=MagicMock(),
            sample_hidden_states=MagicMock(),
            aux_hidden_states=None,
            ec_connector_output=None,
            cudagraph_stats=None,
            slot_mappings=None,
        ),
        speculative_config=MagicMock(
            use_ngram_gpu=lambda: True, disable_padded_drafter_batch=False
        ),
        effective_drafter_max_model_len=32,
        num_spec_tokens=3,
        input_batch=MagicMock(),
        model_config=MagicMock(enable_return_routed_experts=False),
        kv_connector_output=None,
        supports_mm_inputs=False,
        **attributes,
    )


@pytest.mark.parametrize("max_seq_len", [10, 31, 32])
def test_drafts_are_proposed_before_bookkeeping_in_every_step(max_seq_len):
    """Also where a row is too long to draft: the others are not, and the step's
    tokens have to be taken in."""
    calls = []
    sampled = MagicMock()
    runner = make_sampling_runner(max_seq_len, use_async_scheduling=False)
    runner._sample.return_value.sampled_token_ids = sampled

    def propose(scheduler_output, sampled_token_ids, *args):
        calls.append("propose")
        assert sampled_token_ids is sampled
        return MagicMock()

    def bookkeep(*args):
        calls.append("bookkeep")
        return {}, None, [], {}, [], {}, []

    runner.propose_draft_token_ids.side_effect = propose
    runner._bookkeeping_sync.side_effect = bookkeep
    GPUModelRunner.sample_tokens(runner, None)
    assert calls == ["propose", "bookkeep"]


def test_counts_leave_the_worker_beside_the_tokens_under_async_scheduling(monkeypatch):
    counts = torch.tensor([3, 0], dtype=torch.int32)
    runner = make_sampling_runner(
        10,
        use_async_scheduling=True,
        _num_valid_drafts=None,
        async_output_copy_stream=MagicMock(),
        broadcast_pp_output=True,
    )
    runner._bookkeeping_sync.return_value = ({}, None, [], {}, [], {}, [])

    def propose(*args):
        runner._num_valid_drafts = counts
        return MagicMock()

    runner.propose_draft_token_ids.side_effect = propose
    made = MagicMock()
    monkeypatch.setattr(gpu_model_runner, "AsyncGPUModelRunnerOutput", made)
    monkeypatch.setattr(gpu_model_runner, "get_pp_group", MagicMock())
    assert GPUModelRunner.sample_tokens(runner, None) is made.return_value
    assert made.call_args.kwargs["num_valid_drafts"] is counts


def test_propose_passes_the_step_and_keeps_what_the_next_one_needs():
    num_reqs, k, num_tokens = 2, 3, 6
    drafts = NgramDrafts(
        draft_token_ids=torch.zeros(num_reqs, k, dtype=torch.int32),
        num_valid_drafts=torch.tensor([3, 0], dtype=torch.int32),
        next_token_ids=torch.tensor([7, 8], dtype=torch.int32),
        num_sampled=torch.tensor([2, 1], dtype=torch.int32),
    )
    block_table = MagicMock()
    runner = make_runner(
        drafter=MagicMock(),
        input_batch=MagicMock(),
        vllm_config=MagicMock(),
        seq_lens=MagicMock(),
        discard_request_mask=MagicMock(),
    )
    runner.vllm_config.kv_transfer_config = None
    runner.drafter.token_buffer.kv_cache_gid = 1
    runner.drafter.propose.return_value = drafts
    runner.input_batch.block_table = [MagicMock(), block_table]
    runner.input_ids = MagicMock(gpu=torch.arange(10, dtype=torch.int32))
    block_table.slot_mapping.gpu = torch.arange(10)

    result = GPUModelRunner._propose_ngram_gpu(
        runner,
        MagicMock(total_num_scheduled_tokens=num_tokens),
        torch.zeros(num_reqs, k + 1, dtype=torch.int32),
        None,
        max_seq_len=20,
    )

    assert result is drafts.draft_token_ids
    assert runner._num_valid_drafts is drafts.num_valid_drafts
    runner._copy_valid_sampled_token_count.assert_called_once_with(
        drafts.next_token_ids, drafts.num_sampled
    )
    step = runner.drafter.propose.call_args.kwargs
    assert step["input_ids"].shape == step["slot_mapping"].shape == (num_tokens,)
    assert step["cu_num_draft_tokens"] is None
    block_table.get_device_tensor.assert_called_once_with(num_reqs)
    runner.drafter.token_buffer.seed.assert_not_called()


def test_only_real_drafts_leave_the_worker_without_async_scheduling():
    padded = [[1, 2, 3], [4, 4, 4], [5, 6, 6]]
    runner = make_runner(
        num_spec_tokens=3,
        _draft_token_req_ids=["a", "b", "c"],
        num_valid_drafts_cpu=torch.tensor([3, 0, 2, 9], dtype=torch.int32),
    )
    runner._get_draft_token_ids_cpu.return_value = (padded, ["a", "b", "c"])
    taken = GPUModelRunner.take_draft_token_ids(runner)
    assert taken.req_ids == ["a", "b", "c"]
    assert taken.draft_token_ids == [[1, 2, 3], [], [5, 6]]

    # Async scheduling: the padding is in the next step's input already.
    runner.num_valid_drafts_cpu = None
    taken = GPUModelRunner.take_draft_token_ids(runner)
    assert taken.draft_token_ids == padded


def test_rows_whose_kv_a_connector_may_have_brought():
    """New and resumed rows, as far as their KV is there before the step."""
    token_ids = np.arange(40).reshape(4, 10)
    blocks = np.arange(8).reshape(4, 2)
    runner = make_runner(input_batch=MagicMock())
    runner.input_batch.req_id_to_index = {"new": 0, "run": 1, "back": 2, "cold": 3}
    runner.input_batch.num_computed_tokens_cpu = np.array([4, 6, 8, 0])
    runner.input_batch.token_ids_cpu = token_ids
    block_table = MagicMock()
    block_table.get_numpy_array.return_value = blocks
    scheduler_output = SchedulerOutput.make_empty()
    scheduler_output.scheduled_new_reqs = [MagicMock(), MagicMock()]
    for request, req_id in zip(scheduler_output.scheduled_new_reqs, ("new", "cold")):
        request.req_id = req_id
    cached = CachedRequestData.make_empty()
    cached.req_ids, cached.resumed_req_ids = ["run", "back"], {"back"}
    scheduler_output.scheduled_cached_reqs = cached

    rows = GPUModelRunner._get_foreign_rows(runner, scheduler_output, block_table)

    assert [row.token_ids.tolist() for row in rows] == [
        [0, 1, 2, 3],
        [20, 21, 22, 23, 24, 25, 26, 27],
    ]
    assert [row.block_ids.tolist() for row in rows] == [[0, 1], [4, 5]]


@pytest.mark.parametrize("method", ["ngram_gpu", "ngram", None])
def test_kernels_are_compiled_before_the_first_step(monkeypatch, method):
    monkeypatch.setattr(warmup.envs, "VLLM_USE_DEEP_GEMM", False, raising=False)
    worker = MagicMock()
    worker.vllm_config.kernel_config.enable_flashinfer_autotune = False
    worker.model_runner.is_pooling_model = True
    if method is None:
        worker.vllm_config.speculative_config = None
    else:
        worker.vllm_config.speculative_config.use_ngram_gpu.return_value = (
            method == "ngram_gpu"
        )
    warmup.kernel_warmup(worker)
    assert worker.model_runner.drafter.warm_up.called == (method == "ngram_gpu")
