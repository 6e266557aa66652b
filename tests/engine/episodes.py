# SPDX-License-Identifier: Apache-2.0
"""Random episodes on the real scheduler and model runner, thousands of steps a minute.

The model is replaced by a table: the next token depends on the last one, and in
places on the position. So every request's right answer is known without a second
run, and a step costs what the engine itself costs. A line may replace its greedy
rejection kernel by the same rule in torch, where that would be most of the time,
interpreted; the matrix runs the kernel itself.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from engines import Engine
from line import check_histories, use_model, use_plain_rejection
from vllm import SamplingParams

LOW, HIGH = 3, 60  # the token ids that the table knows
ODD = 13  # every position that this divides takes another way


def next_token(token: Any, position: Any) -> Any:
    """The table, for integers and tensors: short loops, left where ODD divides."""
    stay = LOW + (token * 7 + 3) % 11
    leave = LOW + (token * 5 + position) % (HIGH - LOW)
    return stay + (position % ODD == 0) * (leave - stay)


def continuation(prompt: list[int], count: int) -> list[int]:
    """The right output of a request."""
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history[-1], len(history) - 1))
    return history[len(prompt) :]


class TableModel(torch.nn.Module):
    """Takes the place of the runner's model."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def forward(self, input_ids, positions, **_rest) -> torch.Tensor:
        # An id outside the vocabulary would be an index error in an embedding.
        assert bool(((input_ids >= 0) & (input_ids < self.vocabulary)).all())
        return next_token(input_ids.long(), positions).unsqueeze(1)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(hidden[:, 0], self.vocabulary).float()


def with_outputs_at_once(patch: Any, chance: float, seed: int = 0) -> None:
    """Let outputs be there before the next step is scheduled, now and then or always.

    That is a host which is slower than its device: nothing is in flight.
    """
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    plain, pick = UniProcExecutor.sample_tokens, random.Random(seed)

    def sample_tokens(self, grammar_output, non_block=False):
        future = plain(self, grammar_output, non_block=non_block)
        if non_block and pick.random() < chance:
            future.result()
        return future

    patch.setattr(UniProcExecutor, "sample_tokens", sample_tokens)


def with_table_model(engine: Engine, patch: Any) -> Engine:
    """Put the table and the rule into a running engine."""
    runner = engine.runner
    use_model(runner, TableModel(runner.model_config.get_vocab_size()))
    use_plain_rejection(patch)
    return engine


@dataclass
class Live:
    """A request that the episode has sent."""

    prompt: list[int]
    max_tokens: int
    stops: set[int]
    output: list[int]
    finished: bool = False
    aborted: bool = False


class Episode:
    """200 steps of arrivals, aborts, resets and limits, then a look at everything."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine, self.random, self.seed = engine, random.Random(seed), seed
        self.core = engine.llm.llm_engine
        self.requests: dict[str, Live] = {}
        self.max_model_len = engine.runner.max_model_len
        self.busy = self.random.choice([0.1, 0.4, 0.8])
        self.aborts = self.random.choice([0.0, 0.02, 0.1])
        self.resets = self.random.choice([0.0, 0.0, 0.1])

    def _arrive(self) -> None:
        pick = self.random
        longest = self.max_model_len - 1
        length = min(longest, pick.choice([1, 2, 5, 17, 40, pick.randint(1, longest)]))
        prompt = pick.choices(range(LOW, HIGH), k=length)
        if pick.random() < 0.5:  # a text that repeats itself
            period = pick.randint(1, 6)
            prompt = (prompt[:period] * length)[:length]
        known = [r.prompt for r in self.requests.values()]
        if known and pick.random() < 0.3:  # a prefix that may be cached
            prompt = (pick.choice(known) + prompt)[:longest]
        live = Live(
            prompt,
            max_tokens=pick.choice([1, 2, 3, 10, 40, 500]),
            stops=set(pick.sample(range(LOW, HIGH), pick.choice([0, 0, 2]))),
            output=[],
        )
        name = f"{self.seed}-{len(self.requests)}"
        self.requests[name] = live
        params = SamplingParams(
            temperature=0.0,
            max_tokens=live.max_tokens,
            ignore_eos=True,
            stop_token_ids=sorted(live.stops),
            detokenize=False,
        )
        self.core.add_request(
            name, {"prompt_token_ids": prompt}, params, priority=pick.randint(0, 3)
        )

    def _step(self) -> None:
        for output in self.core.step():
            live = self.requests[output.request_id]
            live.output = list(output.outputs[0].token_ids)
            live.finished = output.finished

    def run(self, steps: int = 200) -> None:
        for _ in range(steps):
            if self.random.random() < self.busy and self.core.get_num_unfinished_requests() < 24:
                self._arrive()
            running = [n for n, r in self.requests.items() if not (r.finished or r.aborted)]
            if running and self.random.random() < self.aborts:
                name = self.random.choice(running)
                self.core.abort_request([name])
                self.requests[name].aborted = True
            if self.random.random() < self.resets:
                # With its running requests, or none if there are any.
                self.core.reset_prefix_cache(self.random.random() < 0.7)
            if self.core.has_unfinished_requests():
                self._step()
        self.check_outputs()
        check_histories(self.engine)
        self.drain()

    def drain(self) -> None:
        """Let what is left come to its end, and leave the engine empty."""
        for name, live in self.requests.items():
            if not live.finished and self.random.random() < 0.5:
                self.core.abort_request([name])
                live.aborted = True
        while self.core.has_unfinished_requests():
            self._step()
        self.check_outputs()
        assert not self.engine.scheduler.requests

    def check_outputs(self) -> None:
        for name, live in self.requests.items():
            expected = continuation(live.prompt, len(live.output))
            assert live.output == expected, (name, live.output, expected)
            if not live.finished or live.aborted:
                continue
            ended = (
                len(live.output) == live.max_tokens
                or live.output[-1] in live.stops
                or len(live.prompt) + len(live.output) == self.max_model_len
            )
            assert ended and not set(live.output[:-1]) & live.stops, name
