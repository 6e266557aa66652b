# SPDX-License-Identifier: Apache-2.0
"""A real small model on grounded prompts: the same text in fewer steps.

A line's `test_real_model.py` imports the tests.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from engines import GPU_ASYNC, GPU_SYNC, NONE, Run, engine
from grounded import CHATS, chat
from line import MODES
from scenarios import greedy, tokens
from transformers import AutoTokenizer

SPECULATION = {"num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
SYNC = [mode for mode in MODES if mode.endswith(" sync")]
LENGTH = int(os.environ.get("NGRAM_REAL_TOKENS", "32"))


# Each chat costs as much as another, and four take minutes: a default run has two.
PAIRS = [("copy", "list"), pytest.param(("rewrite", "summarise"), marks=pytest.mark.slow)]


def prompt_ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.apply_chat_template(
        chat(text), add_generation_prompt=True, return_dict=False
    )


@pytest.fixture(scope="module", params=PAIRS, ids=" and ".join)
def runs(request) -> dict[str, dict[str, Run]]:
    """mode -> chat -> run. Each chat runs alone, so its steps are its own."""
    model = os.environ["NGRAM_REAL_MODEL"]
    tokenizer = AutoTokenizer.from_pretrained(model)
    made: dict[str, dict[str, Run]] = {}
    for mode in MODES:
        with engine(
            mode,
            model=model,
            max_num_seqs=4,
            max_num_batched_tokens=512,
            speculation=SPECULATION,
        ) as started:
            made[mode] = {
                name: started.run(
                    [tokens(prompt_ids(tokenizer, text))],
                    greedy(max_tokens=LENGTH, ignore_eos=False),
                )
                for name, text in CHATS.items()
                if name in request.param
            }
    return made


def test_same_text_in_every_mode(runs):
    for mode in MODES[1:]:
        for name in runs[NONE]:
            assert runs[mode][name].tokens == runs[NONE][name].tokens, (mode, name)


def test_fewer_steps_per_token(runs, figures):
    for name in runs[NONE]:
        for mode in MODES:
            run = runs[mode][name]
            counts = run.counts
            figures.add(
                "Real model, one chat at a time",
                chat=name,
                mode=mode,
                tokens=run.num_tokens,
                steps=run.steps,
                **{"steps per token": round(run.steps / run.num_tokens, 3)},
                drafts=counts.drafts,
                **{"draft tokens": counts.draft_tokens},
                accepted=counts.accepted,
                **{"per position": "/".join(str(int(n)) for n in counts.per_position)},
            )
    total = {mode: sum(r.steps for r in runs[mode].values()) for mode in MODES}
    assert total[GPU_SYNC] < 0.8 * total[NONE]
    assert {total[mode] for mode in SYNC} == {total[GPU_SYNC]}
    # Async starts one step that turns out not to be needed at each chat's end.
    assert total[GPU_ASYNC] <= total[GPU_SYNC] + 2 * len(runs[NONE])


def test_counts_agree(runs):
    """Alone in its batch, a chat drafts the same with and without async scheduling,
    but for what an accepted filler changes."""
    for name in runs[NONE]:
        sync = runs[GPU_SYNC][name].counts
        assert all(runs[mode][name].counts == sync for mode in SYNC)
        late = runs[GPU_ASYNC][name].counts
        assert abs(late.accepted - sync.accepted) <= 0.25 * sync.accepted + 4, name
