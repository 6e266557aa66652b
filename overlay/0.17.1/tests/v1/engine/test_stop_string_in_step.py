# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Nothing follows a stop string, however the tokens are spread over the steps."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.outputs import LogprobsLists

pytestmark = pytest.mark.skip_global_cleanup

TEXT = "abcabdabe"


class CharDetokenizer(BaseIncrementalDetokenizer):
    """A token is a character."""

    def decode_next(self, next_token_id: int) -> str:
        return chr(next_token_id)


def splits(text: str) -> Iterable[list[str]]:
    """All ways to spread the tokens over steps."""
    for cuts in itertools.product((False, True), repeat=len(text) - 1):
        step, steps = text[0], []
        for char, cut in zip(text[1:], cuts):
            if cut:
                steps.append(step)
                step = ""
            step += char
        yield [*steps, step]


def make_core_output(
    first: int, step: str, finish_reason: FinishReason | None
) -> EngineCoreOutput:
    token_ids = [ord(char) for char in step]
    places = np.arange(first, first + len(step))
    return EngineCoreOutput(
        request_id="0-int",
        new_token_ids=token_ids,
        new_logprobs=LogprobsLists(
            np.array(token_ids)[:, None], -1.0 - places[:, None], places + 1
        ),
        finish_reason=finish_reason,
    )


def generate(
    steps: Sequence[str], finish_reason: FinishReason, params: SamplingParams
) -> tuple:
    """What a client of the request sees, summed up over the steps."""
    processor = OutputProcessor(None, log_stats=False)
    request = EngineCoreRequest(
        request_id="0-int",
        external_req_id="0",
        prompt_token_ids=[1, 2, 3],
        mm_features=None,
        arrival_time=0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
        sampling_params=params,
        pooling_params=None,
    )
    processor.add_request(request, None)
    processor.request_states["0-int"].detokenizer = CharDetokenizer(request)

    text, token_ids, logprobs, first = "", [], [], 0
    for i, step in enumerate(steps):
        last = finish_reason if i == len(steps) - 1 else None
        core_output = make_core_output(first, step, last)
        first += len(step)
        processed = processor.process_outputs([core_output])
        for request_output in processed.request_outputs:
            (output,) = request_output.outputs
            text += output.text
            token_ids += output.token_ids
            logprobs += [
                {t: lp.logprob for t, lp in p.items()} for p in output.logprobs
            ]
            if request_output.finished:
                return (
                    text,
                    token_ids,
                    logprobs,
                    output.cumulative_logprob,
                    output.finish_reason,
                    output.stop_reason,
                )
    raise AssertionError("not finished")


@pytest.mark.parametrize(
    "kind", [RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY]
)
@pytest.mark.parametrize("finish_reason", [FinishReason.LENGTH, FinishReason.STOP])
@pytest.mark.parametrize("include_stop", [False, True])
@pytest.mark.parametrize(
    "stop, min_tokens, num_tokens",
    [
        (["ca"], 0, 4),
        (["b"], 0, 2),
        (["d", "ab"], 0, 2),
        (["ab"], 2, 5),
        (["ab"], 5, 8),
        (["e"], 0, 9),
        (["x"], 0, 9),
    ],
)
def test_same_in_one_step_as_in_many(
    kind, finish_reason, include_stop, stop, min_tokens, num_tokens
):
    params = SamplingParams(
        stop=stop,
        min_tokens=min_tokens,
        include_stop_str_in_output=include_stop,
        output_kind=kind,
        logprobs=0,
    )
    expected = generate(list(TEXT), finish_reason, params)
    assert expected[1] == [ord(char) for char in TEXT[:num_tokens]]
    for steps in splits(TEXT):
        assert generate(steps, finish_reason, params) == expected, steps
