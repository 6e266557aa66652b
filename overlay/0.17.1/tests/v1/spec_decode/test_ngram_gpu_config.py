# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What method ngram_gpu takes and what it refuses, with reason and alternative."""

import pytest

from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig

pytestmark = pytest.mark.skip_global_cleanup


@pytest.fixture(scope="module")
def model_config() -> ModelConfig:
    return ModelConfig(model="facebook/opt-125m", max_model_len=128)


def make_config(model_config: ModelConfig | None = None, **kwargs):
    kwargs = {"method": "ngram_gpu", "num_speculative_tokens": 3, **kwargs}
    kwargs.setdefault("target_parallel_config", ParallelConfig())
    return SpeculativeConfig(target_model_config=model_config, **kwargs)


def test_options_are_those_of_ngram(model_config):
    config = make_config(model_config, prompt_lookup_max=4, prompt_lookup_min=2)
    assert config.use_ngram_gpu() and not config.use_eagle()
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == (2, 4)
    assert config.num_speculative_tokens == 3
    assert config.draft_model_config is model_config
    assert repr(config) == (
        "SpeculativeConfig(method='ngram_gpu', model=None, num_spec_tokens=3)"
    )


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, (5, 5)),
        ({"prompt_lookup_max": 4}, (4, 4)),
        ({"prompt_lookup_min": 2}, (2, 2)),
    ],
)
def test_defaults_are_those_of_ngram(model_config, given, expected):
    for method in ("ngram", "ngram_gpu"):
        config = make_config(model_config, method=method, **given)
        assert (config.prompt_lookup_min, config.prompt_lookup_max) == expected


def test_method_given_as_model(model_config):
    config = make_config(model_config, method=None, model="ngram_gpu")
    assert config.method == "ngram_gpu"


@pytest.mark.parametrize("model, method", [("ngram", None), (None, "ngram")])
def test_ngram_stays_ngram(model_config, model, method):
    config = make_config(model_config, method=method, model=model)
    assert config.method == "ngram" and not config.use_ngram_gpu()


@pytest.mark.parametrize(
    "kwargs, message",
    [
        (
            {"prompt_lookup_min": 5, "prompt_lookup_max": 3},
            "prompt_lookup_min=5 must be <= prompt_lookup_max=3",
        ),
        (
            {"num_speculative_tokens": 128},
            "num_speculative_tokens=128 must be smaller than max_model_len=128",
        ),
        (
            {"prompt_lookup_max": 128},
            "prompt_lookup_max=128 must be smaller than max_model_len=128",
        ),
        ({"num_speculative_tokens": 0}, "greater than 0"),
        ({"prompt_lookup_min": 0}, "greater than or equal to 1"),
    ],
)
def test_wrong_values(model_config, kwargs, message):
    with pytest.raises(ValueError, match=message):
        make_config(model_config, **kwargs)


def test_largest_values(model_config):
    make_config(model_config, num_speculative_tokens=127, prompt_lookup_max=127)


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"pipeline_parallel_size": 2}, "pipeline.*Use tensor parallelism"),
        (
            {"tensor_parallel_size": 2, "decode_context_parallel_size": 2},
            "context parallelism.*Use method 'ngram'",
        ),
        (
            {"prefill_context_parallel_size": 2},
            "context parallelism.*Use method 'ngram'",
        ),
    ],
)
def test_refused_parallelism(model_config, sizes, message):
    parallel = ParallelConfig(distributed_executor_backend="mp", **sizes)
    with pytest.raises(ValueError, match=f"'ngram_gpu' does not support .*{message}"):
        make_config(model_config, target_parallel_config=parallel)


def test_tensor_and_data_parallelism_are_served(model_config):
    parallel = ParallelConfig(
        tensor_parallel_size=2, data_parallel_size=2, distributed_executor_backend="mp"
    )
    make_config(model_config, target_parallel_config=parallel)


@pytest.mark.parametrize(
    "attribute, message",
    [
        ("enable_prompt_embeds", "prompt embeddings.*Use method 'ngram'"),
        ("is_encoder_decoder", "encoder-decoder models.*Use method 'ngram'"),
    ],
)
def test_refused_models(model_config, monkeypatch, attribute, message):
    monkeypatch.setitem(vars(model_config), attribute, True)
    with pytest.raises(ValueError, match=f"'ngram_gpu' does not support {message}"):
        make_config(model_config)
