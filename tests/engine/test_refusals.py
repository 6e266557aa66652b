# SPDX-License-Identifier: Apache-2.0
"""What ngram_gpu cannot serve is refused at start, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from cpurig.models.ours import TINY_LLAMA


def configuration(speculation: dict[str, Any], **options: Any) -> Any:
    """What the engine would start with; no model is loaded."""
    from vllm.engine.arg_utils import EngineArgs

    arguments = {
        "model": TINY_LLAMA,
        "max_model_len": 256,
        "speculative_config": {
            "method": "ngram_gpu",
            "num_speculative_tokens": 3,
            "prompt_lookup_max": 3,
            **speculation,
        },
        **options,
    }
    return EngineArgs(**arguments).create_engine_config()


def test_async_scheduling_is_the_default():
    assert configuration({}).scheduler_config.async_scheduling
    assert not configuration({"method": "ngram"}).scheduler_config.async_scheduling


@pytest.mark.parametrize(
    "speculation, options, reason",
    [
        ({}, {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}, "pipeline"),
        (
            {},
            {
                "tensor_parallel_size": 2,
                "decode_context_parallel_size": 2,
                "distributed_executor_backend": "mp",
            },
            "context parallelism",
        ),
        (
            {},
            {"prefill_context_parallel_size": 2, "distributed_executor_backend": "mp"},
            "context parallelism",
        ),
        ({}, {"enable_prompt_embeds": True}, "prompt embed"),
        ({"num_speculative_tokens": 256}, {}, "num_speculative_tokens=256 must be smaller"),
        ({"prompt_lookup_max": 256}, {}, "prompt_lookup_max=256 must be smaller"),
        ({"prompt_lookup_min": 4, "prompt_lookup_max": 3}, {}, "prompt_lookup_min"),
        ({"method": "ngram"}, {"async_scheduling": True}, "async scheduling is only supported"),
        (
            {"disable_padded_drafter_batch": True},
            {"async_scheduling": True},
            "disable_padded_drafter_batch",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(speculation, options, reason):
    with pytest.raises(ValueError, match=reason):
        configuration(speculation, **options)
