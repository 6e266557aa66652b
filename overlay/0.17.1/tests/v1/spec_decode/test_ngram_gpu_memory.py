# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The token buffer of method ngram_gpu is counted in the memory for the KV cache."""

import pytest
import torch

from vllm.config import ModelConfig, SpeculativeConfig, VllmConfig
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.spec_decode.token_buffer import BYTES_PER_SLOT

pytestmark = pytest.mark.skip_global_cleanup

FULL = dict(block_size=16, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
ATTENTION = FullAttentionSpec(**FULL)
WINDOW = SlidingWindowSpec(**FULL, sliding_window=64)
BLOCK_BYTES = ATTENTION.page_size_bytes + 16 * BYTES_PER_SLOT


def make_config(method: str, num_gpu_blocks_override: int | None = None):
    config = VllmConfig(model_config=ModelConfig(max_model_len=64))
    config.speculative_config = SpeculativeConfig(
        method=method, num_speculative_tokens=3, prompt_lookup_max=4
    )
    config.cache_config.num_gpu_blocks_override = num_gpu_blocks_override
    return config


def test_blocks_and_their_token_ids_fit_into_the_memory():
    available = 100 * BLOCK_BYTES
    for memory, blocks in ((available, 100), (available - 1, 99)):
        (config,) = get_kv_cache_configs(
            make_config("ngram_gpu"), [{"a": ATTENTION}], [memory]
        )
        assert config.num_blocks == blocks


def test_workers_with_different_memory():
    configs = get_kv_cache_configs(
        make_config("ngram_gpu"),
        [{"a": ATTENTION}, {"a": ATTENTION}],
        [100 * BLOCK_BYTES, 90 * BLOCK_BYTES],
    )
    assert [c.num_blocks for c in configs] == [90, 90]


def test_number_of_blocks_given_by_the_user():
    (config,) = get_kv_cache_configs(
        make_config("ngram_gpu", 33), [{"a": ATTENTION}], [1 << 22]
    )
    assert config.num_blocks == 33


def test_other_methods_keep_their_memory():
    available = 100 * ATTENTION.page_size_bytes
    (config,) = get_kv_cache_configs(
        make_config("ngram"), [{"a": ATTENTION}], [available]
    )
    assert config.num_blocks == 100


def test_refused_before_memory_is_allocated():
    with pytest.raises(ValueError, match="ngram_gpu.*SlidingWindowSpec"):
        get_kv_cache_configs(make_config("ngram_gpu"), [{"a": WINDOW}], [1 << 22])


@pytest.mark.parametrize("blocks", [0, 1])
def test_too_little_memory_is_reported_by_the_cache(blocks):
    """With the buffer as without it: the message names what would be needed."""
    available = blocks * ATTENTION.page_size_bytes + 5
    with pytest.raises(ValueError, match="KV cache is needed"):
        get_kv_cache_configs(make_config("ngram_gpu"), [{"a": ATTENTION}], [available])


def test_reservation_is_logged(monkeypatch):
    lines = []
    monkeypatch.setattr(
        "vllm.v1.spec_decode.token_buffer.logger.info_once",
        lambda msg, *args, **kwargs: lines.append(msg % args),
    )
    get_kv_cache_configs(
        make_config("ngram_gpu"), [{"a": ATTENTION}], [(1 << 14) * BLOCK_BYTES]
    )
    assert len(lines) == 1 and "1.0 MiB" in lines[0] and "0.775 %" in lines[0]
