# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""An engine without a model, for what happens to KV slots over time.

Blocks come from the real KV cache manager and block table. Requests arrive,
hit prefixes, prefill in chunks, decode with drafts, are preempted, resumed,
reordered and finished at random; tokens are made up.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.request import Request
from vllm.v1.spec_decode.token_buffer import DeviceTokenBuffer, SeedRow
from vllm.v1.worker.block_table import BlockTable


def make_kv_cache_config(block_size: int, num_blocks: int) -> KVCacheConfig:
    spec = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float16
    )
    return KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )


@dataclass
class Scheduled:
    """What a request computes in a step."""

    request: Request
    token_ids: list[int]
    num_drafts: int
    samples: bool


@dataclass
class StepTensors:
    """What a step leaves for the proposer, on the device."""

    input_ids: torch.Tensor
    slot_mapping: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    sampled_token_ids: torch.Tensor
    discard_mask: torch.Tensor
    cu_num_draft_tokens: torch.Tensor | None


# Gets the tensors of a step, returns the drafts of each row.
Propose = Callable[[StepTensors], list[list[int]]]


@dataclass
class SimulatedEngine:
    seed: int
    block_size: int = 4
    kernel_block_size: int = 4
    num_blocks: int = 40
    max_num_seqs: int = 5
    max_model_len: int = 60
    k: int = 3
    vocab_size: int = 4
    use_connector: bool = False
    device: str = "cpu"
    use_triton: bool = False
    events: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        init_none_hash(sha256)
        self.rng = np.random.default_rng(self.seed)
        self.kv_cache_config = make_kv_cache_config(self.block_size, self.num_blocks)
        self.manager = KVCacheManager(
            self.kv_cache_config, self.max_model_len, hash_block_size=self.block_size
        )
        self.table = BlockTable(
            self.block_size,
            self.max_num_seqs,
            -(-self.max_model_len // self.block_size),
            self.max_num_seqs * self.max_model_len,
            False,
            torch.device(self.device),
            self.kernel_block_size,
            1,
        )
        self.buffer = DeviceTokenBuffer(
            self.kv_cache_config,
            [self.kernel_block_size],
            torch.device(self.device),
            self.use_triton,
        )
        self.rows: list[Request | None] = [None] * self.max_num_seqs
        self.waiting: list[Request] = []
        self.drafts: dict[str, list[int]] = {}
        self.prefixes = [self._tokens(24) for _ in range(3)]
        self.num_requests = 0

    def _count(self, event: str) -> None:
        self.events[event] = self.events.get(event, 0) + 1

    def _tokens(self, n: int) -> list[int]:
        return self.rng.integers(0, self.vocab_size, n).tolist()

    @property
    def running(self) -> list[Request]:
        return [r for r in self.rows if r is not None]

    # Requests come and go.

    def _arrive(self) -> None:
        prefix = self.prefixes[self.rng.integers(3)][: self.rng.integers(25)]
        prompt = prefix + self._tokens(int(self.rng.integers(1, 12)))
        self.num_requests += 1
        self.waiting.append(
            Request(
                request_id=f"{self.num_requests}",
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(max_tokens=1000),
                pooling_params=None,
                block_hasher=get_request_block_hasher(self.block_size, sha256),
            )
        )

    def _remove(self, request: Request, event: str) -> None:
        self._count(event)
        self.manager.free(request)
        self.rows[self.rows.index(request)] = None
        self.drafts.pop(request.request_id, None)

    def _preempt(self, request: Request) -> None:
        self._remove(request, "preempt")
        request.num_computed_tokens = 0
        self.waiting.insert(0, request)

    def _reorder(self) -> None:
        """What InputBatch does to rows: close gaps, swap."""
        for row in range(self.max_num_seqs):
            last = max((i for i, r in enumerate(self.rows) if r), default=-1)
            if self.rows[row] is None and row < last:
                self._count("condense")
                self.table.move_row(last, row)
                self.rows[row], self.rows[last] = self.rows[last], None
        if len(self.running) > 1 and self.rng.random() < 0.3:
            self._count("swap")
            a, b = self.rng.choice(len(self.running), 2, replace=False)
            self.table.swap_row(a, b)
            self.rows[a], self.rows[b] = self.rows[b], self.rows[a]

    # Scheduling.

    def _schedule(self, request: Request) -> Scheduled | None:
        """Takes the next tokens of a request; None if there are no blocks."""
        start = request.num_computed_tokens
        known = request.all_token_ids[start:]
        drafts: list[int] = []
        if len(known) > 1:  # prefill, perhaps a chunk of it
            known = known[: int(self.rng.integers(1, len(known) + 1))]
        else:
            drafts = self.drafts.pop(request.request_id, [])
            drafts = drafts[: max(0, self.max_model_len - 1 - start - 1)]
        tokens = list(known) + drafts
        blocks = self.manager.allocate_slots(request, len(tokens))
        if blocks is None:
            return None
        self.table.append_row(blocks.get_block_ids()[0], self.rows.index(request))
        samples = start + len(known) == request.num_tokens
        return Scheduled(request, tokens, len(drafts), samples)

    def _schedule_waiting(self, seeds: list[SeedRow]) -> Scheduled | None:
        request = self.waiting[0]
        hit_blocks, hit = self.manager.get_computed_blocks(request)
        external = 0
        if self.use_connector and self.rng.random() < 0.7:
            external = int(self.rng.integers(0, request.num_tokens - hit))
        start = hit + external
        num_new = int(self.rng.integers(1, request.num_tokens - start + 1))
        if not self.manager.allocate_slots(
            request,
            num_new,
            num_new_computed_tokens=hit,
            new_computed_blocks=hit_blocks,
            num_external_computed_tokens=external,
        ):
            return None
        self._count("resume" if request.num_output_tokens else "add")
        if hit:
            self._count("prefix hit")
        self.waiting.pop(0)
        row = self.rows.index(None)
        self.rows[row] = request
        block_ids = self.manager.get_block_ids(request.request_id)[0]
        self.table.add_row(block_ids, row)
        request.num_computed_tokens = start
        if self.use_connector:
            self._count("seed")
            ids = np.array(request.all_token_ids[:start], dtype=np.int32)
            seeds.append(SeedRow(ids, self.table.get_numpy_array()[row].copy()))
        tokens = request.all_token_ids[start : start + num_new]
        return Scheduled(
            request, list(tokens), 0, start + num_new == request.num_tokens
        )

    def _schedule_all(self, seeds: list[SeedRow]) -> dict[str, Scheduled]:
        scheduled: dict[str, Scheduled] = {}
        for request in self.running:
            while request in self.running:
                if (entry := self._schedule(request)) is not None:
                    scheduled[request.request_id] = entry
                    break
                victim = self.running[-1]
                scheduled.pop(victim.request_id, None)
                self._preempt(victim)
        # Added ones may hit blocks that others compute in this very step.
        while self.waiting and None in self.rows:
            if (entry := self._schedule_waiting(seeds)) is None:
                break
            scheduled[entry.request.request_id] = entry
        return scheduled

    # One step.

    def step(self, propose: Propose | None = None) -> None:
        while self.rng.random() < 0.4 and len(self.waiting) < 8:
            self._arrive()
        for request in self.running:
            draw = self.rng.random()
            if draw < 0.03:
                self._preempt(request)
            elif draw < 0.06 or request.num_tokens >= self.max_model_len:
                self._remove(request, "finish")
        seeds: list[SeedRow] = []
        scheduled = self._schedule_all(seeds)
        self._reorder()
        if not scheduled:
            return
        self.buffer.seed(seeds)
        rows = [scheduled[r.request_id] for r in self.running]
        sampled = [self._sample(entry) for entry in rows]
        tensors = self._compute(rows, sampled)
        if propose is None:
            self.buffer.scatter(tensors.input_ids, tensors.slot_mapping)
        drafts = propose(tensors) if propose else [self._tokens(self.k) for _ in rows]
        for entry, new, draft in zip(rows, sampled, drafts):
            request = entry.request
            rejected = entry.num_drafts + 1 - len(new) if new else 0
            request.num_computed_tokens += len(entry.token_ids) - rejected
            if new:
                request.append_output_token_ids(new)
                self.drafts[request.request_id] = draft

    def _sample(self, entry: Scheduled) -> list[int]:
        if not entry.samples:
            return []
        new: list[int] = []
        drafts = entry.token_ids[len(entry.token_ids) - entry.num_drafts :]
        for draft in drafts:
            accept = self.rng.random() < 0.6
            new.append(draft if accept else self._tokens(1)[0])
            if new[-1] != draft:
                return new
        return new + self._tokens(1)

    def _compute(self, rows: list[Scheduled], sampled: list[list[int]]) -> StepTensors:
        counts = [len(e.token_ids) for e in rows]
        starts = np.array([e.request.num_computed_tokens for e in rows])
        req_indices = np.repeat(np.arange(len(rows)), counts)
        positions = np.concatenate(
            [np.arange(s, s + c) for s, c in zip(starts, counts)]
        ).astype(np.int64)
        self.table.compute_slot_mapping(req_indices, positions)
        self.table.commit_slot_mapping(len(positions))
        self.table.commit_block_table(len(rows))
        ids = [t for e in rows for t in e.token_ids]
        num_drafts = np.array([e.num_drafts for e in rows], dtype=np.int32)
        width = self.k + 1 if num_drafts.any() else 1
        # Rows that do not sample get a token all the same, as the runner's do.
        padded = [(new or [1]) + [-1] * (width - len(new or [1])) for new in sampled]

        def tensor(data, dtype=torch.int32):
            return torch.tensor(data, dtype=dtype, device=self.device)

        return StepTensors(
            input_ids=tensor(ids),
            slot_mapping=self.table.slot_mapping.gpu[: len(ids)],
            block_table=self.table.get_device_tensor(len(rows)),
            seq_lens=tensor((starts + counts).tolist()),
            sampled_token_ids=tensor(padded),
            discard_mask=tensor([not e.samples for e in rows], torch.bool),
            cu_num_draft_tokens=tensor(np.cumsum(num_drafts).tolist())
            if num_drafts.any()
            else None,
        )

    def check_buffer(self) -> None:
        """The buffer holds the history of every running request."""
        tokens = self.buffer.tokens.cpu().numpy()
        for row, request in enumerate(self.running):
            n = request.num_computed_tokens
            pos = np.arange(n)
            blocks = self.table.get_numpy_array()[row, pos // self.kernel_block_size]
            slots = blocks * self.kernel_block_size + pos % self.kernel_block_size
            assert tokens[slots].tolist() == list(request.all_token_ids[:n])
