# SPDX-License-Identifier: Apache-2.0
"""What speculation cannot serve is refused at start, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from cpurig.models.ours import TINY_LLAMA


OTHER_VOCABULARY = "facebook/opt-125m"


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
        ({"num_speculative_tokens": 129}, {}, "must not be greater than 128"),
        (
            {"method": "ngram", "num_speculative_tokens": 64},
            {"max_model_len": 64},
            "num_speculative_tokens=64 must be smaller than max_model_len=64",
        ),
        (
            {"method": "draft_model", "model": OTHER_VOCABULARY},
            {},
            "should have the same vocabulary size",
        ),
        (
            {"method": "draft_model", "model": TINY_LLAMA},
            {"max_num_seqs": 8, "max_num_batched_tokens": 8},
            "max_num_batched_tokens=8 leaves no token to schedule",
        ),
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


def test_graph_sizes_below_a_row_of_drafts_name_both_limits():
    """The pin's own check, when graphs are captured: a row takes k + 1 tokens."""
    from vllm.config import CompilationConfig

    sizes = {"cudagraph_capture_sizes": [1, 2, 4], "max_cudagraph_capture_size": 4}
    CompilationConfig(**sizes).adjust_cudagraph_sizes_for_spec_decode(4, 1)
    with pytest.raises(ValueError, match=r"num_speculative_tokens \(4\) or max_cudagraph"):
        CompilationConfig(**sizes).adjust_cudagraph_sizes_for_spec_decode(5, 1)
