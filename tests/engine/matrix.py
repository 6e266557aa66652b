# SPDX-License-Identifier: Apache-2.0
"""Greedy tokens are the same with and without speculation, sync and async.

The scenarios in the modes of a line, whose test_matrix.py imports these tests.
"""

from __future__ import annotations

from typing import Any

import pytest
from engines import GPU_ASYNC, NONE, Run, engine
from line import MODES
from scenarios import ENGINES, SCENARIOS, Scenario

Results = dict[tuple[str, str], Run]


@pytest.fixture(scope="module", params=list(ENGINES))
def results(request) -> Results:
    """Every scenario of one engine configuration in every mode."""
    made: Results = {}
    mine = [s for s in SCENARIOS if s.engine == request.param]
    for mode in MODES:
        with engine(mode, **ENGINES[request.param]) as started:
            for scenario in mine:
                prompts, params = scenario.make()
                made[scenario.name, mode] = started.run(prompts, params, **scenario.options())
    return made


def scenarios_of(results: Results) -> list[Scenario]:
    return [s for s in SCENARIOS if (s.name, NONE) in results]


def _row(scenario: Scenario, mode: str, results: Results) -> dict[str, Any]:
    run, plain = results[scenario.name, mode], results[scenario.name, NONE]
    counts = run.counts
    return {
        "scenario": scenario.name,
        "mode": mode,
        "tokens": run.num_tokens,
        "equal": run.tokens == plain.tokens,
        "steps": run.steps,
        "row-steps": run.row_steps,
        "preempted": run.preemptions,
        "drafts": counts.drafts,
        "draft tokens": counts.draft_tokens,
        "accepted": counts.accepted,
        "per position": "/".join(str(int(n)) for n in counts.per_position),
    }


def test_tokens_are_those_without_speculation(results, figures):
    wrong = []
    for scenario in scenarios_of(results):
        plain = results[scenario.name, NONE]
        for mode in MODES:
            run = results[scenario.name, mode]
            figures.add("Scenarios", **_row(scenario, mode, results))
            wrong += [
                f"{scenario.name}, {mode}, request {i}: {a} != {b}"
                for i, (a, b) in enumerate(zip(run.tokens, plain.tokens, strict=True))
                if a != b
            ]
            also = [scenario.also(o) for o in run.outputs]
            if also != [scenario.also(o) for o in plain.outputs]:
                wrong.append(f"{scenario.name}, {mode}: what is compared besides the tokens")
    assert not wrong, "\n".join(wrong)


def test_speculation_took_place(results):
    """Equal tokens prove nothing where nothing was drafted."""
    drafted = {mode: 0 for mode in MODES}
    for (_, mode), run in results.items():
        drafted[mode] += run.counts.accepted
    assert drafted[NONE] == 0
    assert all(drafted[mode] > 20 for mode in MODES[1:]), drafted


def test_async_counts_are_honest(results):
    """No more drafted or accepted than the rows could hold, and never the padding."""
    for scenario in scenarios_of(results):
        run = results[scenario.name, GPU_ASYNC]
        counts = run.counts
        assert counts.accepted <= counts.draft_tokens
        assert counts.drafts <= run.row_steps
        assert list(counts.per_position) == sorted(counts.per_position, reverse=True)
        assert sum(counts.per_position) == counts.accepted
