# SPDX-License-Identifier: Apache-2.0
"""What the engines are asked for. All greedy: every mode must give the same tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cpurig.models.ours import ADAPTERS, TINY_GEMMA

VOCABULARY = range(10, 500)


def tokens(prompt: list[int]) -> dict[str, list[int]]:
    return {"prompt_token_ids": prompt}


def loop(seed: int, period: int, length: int) -> dict[str, list[int]]:
    """A prompt that repeats `period` random tokens: drafts from the first step on."""
    words = random.Random(seed).choices(VOCABULARY, k=period)
    return tokens((words * (length // period + 1))[:length])


def noise(seed: int, length: int) -> dict[str, list[int]]:
    """A prompt without repetition, or with little."""
    return tokens(random.Random(seed).choices(VOCABULARY, k=length))


def mixed(seed: int, count: int, longest: int = 90) -> list[dict[str, list[int]]]:
    pick = random.Random(seed)
    made = []
    for i in range(count):
        length = pick.randint(3, longest)
        make = [noise(seed + i, length), loop(seed + i, pick.randint(2, 9), length)]
        made.append(made[-1] if made and pick.random() < 0.15 else pick.choice(make))
    return made


def greedy(**options: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(**{"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, **options})


Request = tuple[list[dict[str, list[int]]], Any]


@dataclass(frozen=True)
class Scenario:
    """Requests, and the engine that they need."""

    name: str
    make: Callable[[], Request]
    engine: str = "plain"
    # Compared besides the tokens.
    also: Callable[[Any], Any] = field(default=lambda output: None)
    # More arguments for generate().
    options: Callable[[], dict[str, Any]] = dict


ENGINES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no prefix cache, chunks of 64": {
        "enable_prefix_caching": False,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 24,
    },
    "18 KV blocks": {
        "num_gpu_blocks_override": 18,
        "max_model_len": 256,
        "scheduling_policy": "priority",
    },
    "LoRA, guidance": {
        "enable_lora": True,
        "max_loras": 2,
        "max_lora_rank": 8,
        "structured_outputs_config": {"backend": "guidance"},
    },
    "full and sliding window layers": {"model": TINY_GEMMA, "max_num_batched_tokens": 96},
    "128 positions, k=5, n 1..3": {
        "max_model_len": 128,
        "speculation": {
            "num_speculative_tokens": 5,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 3,
        },
    },
}


def _each(count: int, options: Callable[[int], dict[str, Any]]) -> list[Any]:
    return [greedy(**options(i)) for i in range(count)]


def _logprobs(output: Any) -> Any:
    """Tokens and rounded values of sample and prompt logprobs."""

    def flat(steps: Any) -> Any:
        return [
            step and sorted((t, round(v.logprob, 3), v.rank) for t, v in step.items())
            for step in steps or []
        ]

    return flat(output.outputs[0].logprobs), flat(output.prompt_logprobs)


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"enum": [1, 2]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def _grammars() -> list[Any]:
    """Requests with a grammar between requests without."""
    from vllm.sampling_params import StructuredOutputsParams

    kinds: list[dict[str, Any]] = [
        {},
        {"regex": "(ab|cd){2,9}"},
        {},
        {"json": PERSON},
        {"choice": ["yes, yes, yes", "no, no"]},
        {"regex": r"([0-9]{3}-){4}"},
    ]
    made = []
    for i in range(12):
        kind = kinds[i % len(kinds)]
        constraint = StructuredOutputsParams(**kind) if kind else None
        made.append(greedy(structured_outputs=constraint, ignore_eos=not kind))
    return made


def _adapters() -> dict[str, Any]:
    from huggingface_hub import snapshot_download
    from vllm.lora.request import LoRARequest

    requests = [LoRARequest(name, i, snapshot_download(name)) for i, name in enumerate(ADAPTERS, 1)]
    # Each row has one: vLLM's LoRA kernels for CPUs give rows without the last one's.
    return {"lora_request": [requests[i % 2] for i in range(12)]}


def _ending(output: Any) -> Any:
    done = output.outputs[0]
    return done.text, done.finish_reason, done.stop_reason


SCENARIOS = [
    Scenario("repetition", lambda: ([loop(s, 3 + s, 40) for s in range(8)], greedy())),
    Scenario("noise", lambda: ([noise(s, 20 + 7 * s) for s in range(8)], greedy())),
    Scenario(
        "40 requests, lengths 1..60",
        lambda: (mixed(1, 40), _each(40, lambda i: {"max_tokens": 1 + (i * 7) % 60})),
    ),
    Scenario(
        "shared prefixes",
        lambda: (
            [
                tokens(noise(9, 96)["prompt_token_ids"] + loop(s, 4, 12)["prompt_token_ids"])
                for s in range(10)
            ],
            greedy(),
        ),
    ),
    Scenario(
        "penalties",
        lambda: (
            mixed(2, 12),
            _each(
                12,
                lambda i: [
                    {},
                    {"presence_penalty": 1.5},
                    {"frequency_penalty": 0.7},
                    {"repetition_penalty": 1.3},
                ][i % 4],
            ),
        ),
    ),
    Scenario(
        "min tokens and end tokens",
        lambda: (
            mixed(3, 10),
            _each(
                10,
                lambda i: {
                    "ignore_eos": False,
                    "min_tokens": 3 * i,
                    "stop_token_ids": list(range(20, 500, 3 + i)),
                },
            ),
        ),
        also=_ending,
    ),
    Scenario(
        "bad words",
        lambda: (
            mixed(4, 10),
            _each(
                10,
                lambda i: {"bad_words": [" the", "the", "a b", " is"] if i % 2 else None},
            ),
        ),
    ),
    Scenario(
        "allowed tokens",
        lambda: (
            mixed(5, 9),
            _each(
                9,
                lambda i: [{"allowed_token_ids": list(range(40 + i, 60 + i))}, {}][i % 2],
            ),
        ),
    ),
    Scenario(
        "logprobs and prompt logprobs",
        lambda: (
            mixed(6, 8),
            _each(8, lambda i: {"logprobs": i % 4, "prompt_logprobs": [None, 2][i % 2]}),
        ),
        also=_logprobs,
    ),
    Scenario(
        "stop strings",
        lambda: (
            mixed(7, 10),
            _each(10, lambda i: {"stop": ["e", " a", "in"][: i % 4], "min_tokens": i % 3}),
        ),
        also=_ending,
    ),
    Scenario(
        "chunked prefill, no prefix cache",
        lambda: (mixed(8, 24, longest=200), greedy(max_tokens=30)),
        engine="no prefix cache, chunks of 64",
    ),
    Scenario(
        "chunks with penalties and logprobs",
        lambda: (
            mixed(9, 12, longest=150),
            _each(12, lambda i: [{"repetition_penalty": 1.2}, {"logprobs": 1}, {}][i % 3]),
        ),
        engine="no prefix cache, chunks of 64",
        also=_logprobs,
    ),
    Scenario(
        "preemption",
        lambda: (mixed(10, 14, longest=60), greedy(max_tokens=80)),
        engine="18 KV blocks",
        options=lambda: {"priority": [(7 * i) % 5 for i in range(14)]},
    ),
    Scenario("grammars beside free requests", lambda: (mixed(12, 12), _grammars()), also=_ending),
    Scenario(
        "grammars, guidance",
        lambda: (mixed(13, 12), _grammars()),
        engine="LoRA, guidance",
        also=_ending,
    ),
    Scenario(
        "two adapters",
        lambda: ([loop(70 + i // 3, 5, 30) for i in range(12)], greedy()),
        engine="LoRA, guidance",
        options=_adapters,
    ),
    Scenario(
        "windows of 64 in texts of 150",
        lambda: (mixed(14, 10, longest=150), greedy()),
        engine="full and sliding window layers",
    ),
    Scenario(
        "at max_model_len",
        lambda: (
            [loop(s, 5, 70 + 3 * s) for s in range(12)] + [noise(50, 127), loop(51, 4, 126)],
            greedy(max_tokens=200),
        ),
        engine="128 positions, k=5, n 1..3",
    ),
    Scenario(
        "beside rows at max_model_len",
        lambda: (
            [loop(60 + s, 6, 20 + 8 * s) for s in range(12)],
            _each(12, lambda i: {"max_tokens": 200 if i % 3 == 0 else 50}),
        ),
        engine="128 positions, k=5, n 1..3",
    ),
]
