# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""num_speculative_tokens is limited by the rejection sampler and the context."""

import pytest

from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig
from vllm.v1.sample.rejection_sampler import MAX_SPEC_LEN

pytestmark = pytest.mark.skip_global_cleanup


def make_config(
    num_speculative_tokens: int, max_model_len: int = 512
) -> SpeculativeConfig:
    return SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=num_speculative_tokens,
        target_model_config=ModelConfig(
            "facebook/opt-125m", max_model_len=max_model_len
        ),
        target_parallel_config=ParallelConfig(),
    )


def test_limit_of_the_rejection_sampler():
    assert make_config(MAX_SPEC_LEN).num_speculative_tokens == MAX_SPEC_LEN
    message = (
        f"num_speculative_tokens={MAX_SPEC_LEN + 1} must not be greater than "
        f"{MAX_SPEC_LEN}"
    )
    with pytest.raises(ValueError, match=message):
        make_config(MAX_SPEC_LEN + 1)


def test_limit_of_the_context():
    assert make_config(63, max_model_len=64).num_speculative_tokens == 63
    message = "num_speculative_tokens=64 must be smaller than max_model_len=64"
    with pytest.raises(ValueError, match=message):
        make_config(64, max_model_len=64)
