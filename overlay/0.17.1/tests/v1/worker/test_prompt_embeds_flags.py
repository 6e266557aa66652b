# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""With prompt embeds enabled, which of a step's inputs are token ids."""

import numpy as np
import pytest
import torch

from tests.v1.worker.test_gpu_model_runner import model_runner  # noqa: F401
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

PROMPT_LEN = 4
DRAFTS = [21, 22, 23]


def schedule_prompts(runner, req_ids: list[str]) -> SchedulerOutput:
    """ "embeds" has an embedded prompt, the others have token ids."""
    hidden_size = runner.inputs_embeds_size
    output = SchedulerOutput.make_empty()
    for i, req_id in enumerate(req_ids):
        embeds = torch.ones(PROMPT_LEN, hidden_size) if req_id == "embeds" else None
        output.scheduled_new_reqs.append(
            NewRequestData(
                req_id=req_id,
                prompt_token_ids=None if embeds is not None else [1, 2, 3, 4],
                prompt_embeds=embeds,
                mm_features=[],
                sampling_params=SamplingParams(),
                pooling_params=None,
                block_ids=([i],),
                num_computed_tokens=0,
                lora_request=None,
            )
        )
        output.num_scheduled_tokens[req_id] = PROMPT_LEN
    output.total_num_scheduled_tokens = PROMPT_LEN * len(req_ids)
    output.num_common_prefix_blocks = [0]
    return output


def schedule_decodes(runner, req_ids: list[str], drafts: list[int]) -> SchedulerOutput:
    output = SchedulerOutput.make_empty()
    cached = output.scheduled_cached_reqs = CachedRequestData.make_empty()
    for req_id in req_ids:
        cached.req_ids.append(req_id)
        cached.new_block_ids.append(None)
        cached.num_computed_tokens.append(PROMPT_LEN)
        cached.num_output_tokens.append(1)
        output.num_scheduled_tokens[req_id] = 1 + len(drafts)
        if drafts:
            output.scheduled_spec_decode_tokens[req_id] = list(drafts)
    output.total_num_scheduled_tokens = (1 + len(drafts)) * len(req_ids)
    output.num_common_prefix_blocks = [0]
    return output


def prepare(runner, scheduler_output: SchedulerOutput) -> list[bool]:
    """Flags of the step's inputs, on the device."""
    runner._update_states(scheduler_output)
    num_tokens = list(scheduler_output.num_scheduled_tokens.values())
    runner._prepare_inputs(scheduler_output, np.array(num_tokens, dtype=np.int32))
    total = scheduler_output.total_num_scheduled_tokens
    return runner.is_token_ids.gpu[:total].tolist()


def sample_one(runner, req_ids: list[str], token_id: int) -> None:
    batch = runner.input_batch
    for req_id in req_ids:
        row = batch.req_id_to_index[req_id]
        batch.token_ids_cpu[row, PROMPT_LEN] = token_id
        batch.is_token_ids[row, PROMPT_LEN] = True
        batch.num_tokens_no_spec[row] += 1
        runner.requests[req_id].output_token_ids.append(token_id)


@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("drafts", [[], DRAFTS])
def test_sampled_and_draft_tokens_are_token_ids(
    model_runner,  # noqa: F811
    dist_init,
    use_async: bool,
    drafts: list[int],
):
    runner = model_runner
    runner.enable_prompt_embeds = True
    runner.num_spec_tokens = len(DRAFTS)
    req_ids = ["tokens", "embeds"]

    flags = prepare(runner, schedule_prompts(runner, req_ids))
    assert flags == [True] * PROMPT_LEN + [False] * PROMPT_LEN

    sample_one(runner, req_ids, 9)
    if use_async:
        # The sampled tokens and the drafts are on the device only.
        runner.input_batch.prev_req_id_to_index = {r: i for i, r in enumerate(req_ids)}
        runner.input_batch.prev_sampled_token_ids = torch.full(
            (2, 1), 9, dtype=torch.int32, device=runner.device
        )
        runner._draft_token_ids = torch.tensor([DRAFTS] * 2, device=runner.device)
    flags = prepare(runner, schedule_decodes(runner, req_ids, drafts))

    assert flags == [True] * len(flags)
    num_inputs = 2 * (1 + len(drafts))
    assert runner.input_ids.gpu[:num_inputs].tolist() == [9, *drafts] * 2
