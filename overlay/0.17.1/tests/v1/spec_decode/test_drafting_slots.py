# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Slots that drafting adds to a batch must leave tokens to schedule."""

import pytest

from vllm.config import (
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)

pytestmark = pytest.mark.skip_global_cleanup

MODEL = "facebook/opt-125m"
MAX_NUM_SEQS = 4


def num_scheduled_tokens(
    max_num_batched_tokens: int, parallel_drafting: bool
) -> int | None:
    model_config = ModelConfig(MODEL, max_model_len=128)
    config = VllmConfig(
        model_config=model_config,
        scheduler_config=SchedulerConfig(
            max_model_len=128,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=max_num_batched_tokens,
            is_encoder_decoder=False,
        ),
        speculative_config=SpeculativeConfig(
            method="draft_model",
            model=MODEL,
            num_speculative_tokens=5,
            parallel_drafting=parallel_drafting,
            target_model_config=model_config,
            target_parallel_config=ParallelConfig(),
        ),
    )
    return config.scheduler_config.max_num_scheduled_tokens


@pytest.mark.parametrize("parallel_drafting, slots", [(False, 1), (True, 5)])
def test_at_least_one_token_is_left(parallel_drafting: bool, slots: int):
    slots *= MAX_NUM_SEQS
    assert num_scheduled_tokens(slots + 1, parallel_drafting) == 1
    # Zero would be taken for no limit, less than zero would schedule nothing.
    for max_num_batched_tokens in {slots, max(MAX_NUM_SEQS, slots - 3)}:
        with pytest.raises(ValueError, match=f"must be greater than {slots};"):
            num_scheduled_tokens(max_num_batched_tokens, parallel_drafting)
