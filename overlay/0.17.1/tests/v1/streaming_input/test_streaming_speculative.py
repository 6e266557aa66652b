# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Streaming input and speculative decoding do not go together yet."""

import pytest

from vllm.config import ModelConfig, SpeculativeConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.input_processor import InputProcessor


def process(speculative: bool, resumable: bool) -> EngineCoreRequest:
    config = VllmConfig(
        model_config=ModelConfig(model="facebook/opt-125m", skip_tokenizer_init=True),
        speculative_config=(
            SpeculativeConfig(method="ngram", num_speculative_tokens=2)
            if speculative
            else None
        ),
    )
    return InputProcessor(config).process_inputs(
        "0",
        {"prompt_token_ids": [1, 2, 3]},
        SamplingParams(max_tokens=4, detokenize=False),
        supported_tasks=("generate",),
        resumable=resumable,
    )


def test_refused_together():
    with pytest.raises(ValueError, match="Streaming input is not supported"):
        process(speculative=True, resumable=True)


@pytest.mark.parametrize(
    "speculative, resumable", [(True, False), (False, True), (False, False)]
)
def test_each_alone(speculative: bool, resumable: bool):
    assert process(speculative, resumable).resumable == resumable
