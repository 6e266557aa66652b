# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""An output that names only its tokens equals one that names all its fields."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType
from vllm.v1.metrics.stats import PrefillStats

from .step_utils import (
    KINDS,
    RANDOM_STEPS,
    STEPS,
    NewRequest,
    Side,
    Step,
    assert_steps_equal,
)

pytestmark = pytest.mark.cpu_test


@pytest.mark.parametrize("name", KINDS)
@RANDOM_STEPS
@given(steps=STEPS)
def test_steps_equal_plain_steps(name: str, steps: list[Step]) -> None:
    plain = Side(KINDS[name])
    # No mask is returned, but each output is made with all its fields.
    plain.scheduler.return_sampling_mask = True
    assert_steps_equal(Side(KINDS[name]), plain, steps)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (
            "events",
            [event := EngineCoreEvent.new_event(EngineCoreEventType.QUEUED)],
            [event.type],
        ),
        ("prefill_stats", stats := PrefillStats(), stats),
        ("stop_reason", 7, 7),
        ("trace_headers", headers := {"traceparent": "00"}, headers),
        ("num_nans_in_logits", 3, 3),
    ],
)
def test_what_a_request_has_beside_tokens_is_returned(
    name: str, value: Any, expected: Any
) -> None:
    init_none_hash(sha256)
    side = Side(KINDS["full"])
    decode = Step((), accepted=(0,), tokens=(9,), abort=None, reset=False)
    side.step(replace(decode, new_requests=(NewRequest(0, 1, max_tokens=9),)))
    (request,) = side.scheduler.running
    setattr(request, name, value)
    ((output,),) = side.step(decode)["outputs"].values()
    assert output["new_token_ids"] == [9]
    assert output[name] == expected
