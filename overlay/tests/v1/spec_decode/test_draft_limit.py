# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""num_speculative_tokens is limited by the rejection sampler."""

import pytest

from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig
from vllm.v1.sample.rejection_sampler import MAX_SPEC_LEN

pytestmark = pytest.mark.skip_global_cleanup


def make_config(num_speculative_tokens: int) -> SpeculativeConfig:
    return SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=num_speculative_tokens,
        target_model_config=ModelConfig("facebook/opt-125m", max_model_len=512),
        target_parallel_config=ParallelConfig(),
    )


def test_limit():
    assert make_config(MAX_SPEC_LEN).num_speculative_tokens == MAX_SPEC_LEN
    message = (
        f"num_speculative_tokens={MAX_SPEC_LEN + 1} must not be greater than "
        f"{MAX_SPEC_LEN}"
    )
    with pytest.raises(ValueError, match=message):
        make_config(MAX_SPEC_LEN + 1)
