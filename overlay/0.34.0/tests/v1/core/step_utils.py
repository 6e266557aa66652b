# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Random steps of a scheduler, to compare it with one that takes no shortcuts.

Both get the same requests and sampled tokens. After each step the KV cache managers,
the block pool, the block hashes and what the steps returned have to be equal.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import msgspec
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from vllm.config import VllmConfig
from vllm.sampling_params import RepetitionDetectionParams, SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    RSWASpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from .utils import create_scheduler, mock_kv

BLOCK_SIZE = 4
NUM_BLOCKS = 40
MAX_MODEL_LEN = 64
NUM_SPEC_TOKENS = 3
EOS_TOKEN_ID = 2
STOP_TOKEN_ID = 3
REPETITIONS = RepetitionDetectionParams(max_pattern_size=2, min_count=3)

_ATTENTION: dict[str, Any] = dict(
    block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
)
FULL = FullAttentionSpec(**_ATTENTION)
SLIDING = SlidingWindowSpec(**_ATTENTION, sliding_window=2 * BLOCK_SIZE)
CHUNKED = ChunkedLocalAttentionSpec(**_ATTENTION, attention_chunk_size=2 * BLOCK_SIZE)
RSWA = RSWASpec(**_ATTENTION, rswa_window=2 * BLOCK_SIZE)
CROSS = CrossAttentionSpec(**_ATTENTION)
MAMBA = MambaSpec(
    block_size=BLOCK_SIZE,
    shapes=((1, 1),),
    dtypes=(torch.float32,),
    mamba_cache_mode="align",
)
COARSE_FULL = replace(FULL, block_size=2 * BLOCK_SIZE)


@dataclass(frozen=True)
class Kind:
    """A kind of KV cache, and what the scheduler is configured with."""

    specs: tuple[KVCacheSpec, ...] = (FULL,)
    caching: bool = True
    num_spec_tokens: int = 0
    asynchronous: bool = False
    # Of the hashes, where it is finer than the groups' blocks.
    hash_block_size: int = BLOCK_SIZE
    connector_tokens: int | None = None
    dcp: int = 1
    lookahead: int = 0
    hash_lookahead: int = 0

    @property
    def block_size(self) -> int:
        return max(spec.block_size for spec in self.specs) * self.dcp


KINDS = {
    "full": Kind(),
    "full, async": Kind(asynchronous=True),
    "full, spec": Kind(num_spec_tokens=NUM_SPEC_TOKENS),
    "full, spec, async": Kind(num_spec_tokens=NUM_SPEC_TOKENS, asynchronous=True),
    "full, no caching": Kind(caching=False),
    "full, lookahead slots": Kind(
        num_spec_tokens=NUM_SPEC_TOKENS, lookahead=NUM_SPEC_TOKENS
    ),
    "full, lookahead hashes": Kind(
        num_spec_tokens=NUM_SPEC_TOKENS, asynchronous=True, hash_lookahead=1
    ),
    "full, DCP": Kind(dcp=2, hash_block_size=2 * BLOCK_SIZE),
    "full, connector": Kind(connector_tokens=2 * BLOCK_SIZE),
    "full, connector, async": Kind(connector_tokens=2 * BLOCK_SIZE, asynchronous=True),
    "sliding": Kind((SLIDING,), asynchronous=True),
    "chunked": Kind((CHUNKED,)),
    "R-SWA": Kind((RSWA,), asynchronous=True),
    "full and sliding": Kind((FULL, SLIDING)),
    "full and sliding, spec, async": Kind(
        (FULL, SLIDING), num_spec_tokens=NUM_SPEC_TOKENS, asynchronous=True
    ),
    "coarse full and sliding": Kind((COARSE_FULL, SLIDING)),
    "full and Mamba": Kind((FULL, MAMBA)),
    "full and Mamba, partial hits": Kind(
        (COARSE_FULL, replace(MAMBA, block_size=2 * BLOCK_SIZE))
    ),
    "full and cross": Kind((FULL, CROSS), caching=False),
}


@cache
def _vllm_config(kind: Kind) -> VllmConfig:
    """Made once for each kind: a model configuration takes long to make."""
    connector = kind.connector_tokens
    config = create_scheduler(
        max_num_seqs=6,
        max_num_batched_tokens=32,
        max_model_len=MAX_MODEL_LEN,
        enable_prefix_caching=kind.caching,
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        async_scheduling=kind.asynchronous,
        num_speculative_tokens=kind.num_spec_tokens or None,
        speculative_method="ngram" if kind.num_spec_tokens else None,
        use_kv_connector=None if connector is None else mock_kv(connector, False),
    ).vllm_config
    config.cache_config.mamba_cache_mode = "align" if MAMBA in kind.specs else "none"
    config.parallel_config.decode_context_parallel_size = kind.dcp
    return config


def _scheduler(
    kind: Kind, sync_cls: type[Scheduler], async_cls: type[AsyncScheduler]
) -> Scheduler:
    config = _vllm_config(kind)
    groups = [KVCacheGroupSpec([f"layer{i}"], s) for i, s in enumerate(kind.specs)]
    register_all_kvcache_specs(config)
    scheduler = (async_cls if kind.asynchronous else sync_cls)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(NUM_BLOCKS, [], groups),
        block_size=kind.block_size,
        hash_block_size=kind.hash_block_size,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
    )
    if (most := kind.connector_tokens) is not None:
        # The mock's number of tokens, but never more than the request has left.
        scheduler.connector.get_num_new_matched_tokens = lambda request, computed: (
            min(most, request.num_tokens - 1 - computed),
            False,
        )
    scheduler.num_lookahead_tokens = kind.lookahead
    scheduler.kv_cache_manager.block_pool.num_hash_lookahead_tokens = (
        kind.hash_lookahead
    )
    scheduler.kv_cache_manager.block_pool.enable_kv_cache_events = True
    return scheduler


@dataclass(frozen=True)
class NewRequest:
    # Prompts with the same prefix hit each other's blocks.
    prefix: int
    prompt_length: int
    max_tokens: int
    min_tokens: int = 0
    detects_repetition: bool = False


@dataclass(frozen=True)
class Step:
    new_requests: tuple[NewRequest, ...]
    # Per scheduled request, modulo their number: drafts accepted, token sampled.
    accepted: tuple[int, ...]
    tokens: tuple[int, ...]
    abort: int | None
    reset: bool


STEPS = st.lists(
    st.builds(
        Step,
        new_requests=st.lists(
            st.builds(
                NewRequest,
                prefix=st.integers(0, 1),
                prompt_length=st.integers(1, 40),
                max_tokens=st.integers(1, 24),
                min_tokens=st.sampled_from([0, 0, 2]),
                detects_repetition=st.booleans(),
            ),
            max_size=2,
        ).map(tuple),
        accepted=st.lists(st.integers(0, NUM_SPEC_TOKENS), min_size=1, max_size=4).map(
            tuple
        ),
        # Few enough to see stop tokens, and blocks with the same tokens.
        tokens=st.lists(st.integers(1, 12), min_size=1, max_size=7).map(tuple),
        abort=st.none() | st.integers(0, 5),
        reset=st.integers(0, 15).map(lambda i: i == 0),
    ),
    min_size=8,
    max_size=40,
)
RANDOM_STEPS = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@dataclass
class Side:
    """One of the two schedulers, with the steps that are in flight."""

    kind: Kind
    request_cls: type[Request] = Request
    sync_cls: type[Scheduler] = Scheduler
    async_cls: type[AsyncScheduler] = AsyncScheduler
    num_requests: int = 0
    # Each with the requests that sample in it.
    in_flight: deque[tuple[SchedulerOutput, set[str]]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.scheduler = _scheduler(self.kind, self.sync_cls, self.async_cls)
        self.hasher = get_request_block_hasher(
            self.kind.hash_block_size, sha256, self.kind.hash_lookahead
        )

    def add(self, new: NewRequest) -> None:
        params = SamplingParams(
            max_tokens=new.max_tokens,
            min_tokens=min(new.min_tokens, new.max_tokens),
            stop_token_ids=[STOP_TOKEN_ID],
            repetition_detection=REPETITIONS if new.detects_repetition else None,
        )
        params.update_from_generation_config({}, EOS_TOKEN_ID)
        request = self.request_cls(
            request_id=f"request-{self.num_requests}",
            prompt_token_ids=[100 + new.prefix] * new.prompt_length,
            sampling_params=params,
            pooling_params=None,
            arrival_time=float(self.num_requests),
            block_hasher=self.hasher,
        )
        self.num_requests += 1
        self.scheduler.add_request(request)

    def step(self, step: Step) -> dict[str, Any]:
        for new in step.new_requests:
            self.add(new)
        # Blocks of steps in flight are only freed later where a connector reads them.
        if step.reset and not (self.kind.connector_tokens and self.in_flight):
            self.scheduler.reset_prefix_cache(reset_running_requests=True)
        if step.abort is not None and self.scheduler.running:
            victim = self.scheduler.running[step.abort % len(self.scheduler.running)]
            self.scheduler.finish_requests(
                victim.request_id, RequestStatus.FINISHED_ABORTED
            )
        scheduled = self.scheduler.schedule()
        seen = {"scheduled": _scheduled(scheduled), "after schedule": self.state()}
        samples = {
            req_id
            for req_id in scheduled.num_scheduled_tokens
            if not self.scheduler.requests[req_id].is_prefill_chunk
        }
        self.in_flight.append((scheduled, samples))
        if len(self.in_flight) > self.kind.asynchronous:
            seen["outputs"] = self.update(*self.in_flight.popleft(), step)
            seen["after update"] = self.state()
        return seen

    def update(self, scheduled: SchedulerOutput, samples: set[str], step: Step) -> Any:
        req_ids = list(scheduled.num_scheduled_tokens)
        sampled = [
            self._sampled(scheduled, req_id, i, step) if req_id in samples else []
            for i, req_id in enumerate(req_ids)
        ]
        outputs = self.scheduler.update_from_output(
            scheduled, ModelRunnerOutput(req_ids=req_ids, sampled_token_ids=sampled)
        )
        if self.kind.num_spec_tokens and not self.kind.asynchronous:
            drafts = [[7] * (1 + i % self.kind.num_spec_tokens) for i in step.accepted]
            self.scheduler.update_draft_token_ids(
                DraftTokenIds(
                    req_ids, [drafts[i % len(drafts)] for i in range(len(req_ids))]
                )
            )
        return {
            client: [_output(o) for o in core_outputs.outputs]
            for client, core_outputs in outputs.items()
        }

    def _sampled(
        self, scheduled: SchedulerOutput, req_id: str, index: int, step: Step
    ) -> list[int]:
        drafts = scheduled.scheduled_spec_decode_tokens.get(req_id, ())
        count = 1 + min(step.accepted[index % len(step.accepted)], len(drafts))
        return [step.tokens[(index + i) % len(step.tokens)] for i in range(count)]

    def state(self) -> dict[str, Any]:
        manager = self.scheduler.kv_cache_manager
        pool = manager.block_pool
        return {
            "managers": [
                _manager_state(m) for m in manager.coordinator.single_type_managers
            ],
            "blocks": [(b.ref_cnt, b.block_hash, b.is_null) for b in pool.blocks],
            "free": [b.block_id for b in pool.free_block_queue.get_all_free_blocks()],
            "events": [repr(e) for e in pool.kv_event_queue],
            "requests": {
                req_id: (
                    r.status,
                    r.num_computed_tokens,
                    r.num_in_flight_tokens,
                    r.num_output_placeholders,
                    r.num_stale_output_tokens,
                    r.is_prefill_chunk,
                    r.num_preemptions,
                    list(r.spec_token_ids),
                    list(r.all_token_ids),
                    list(r.output_token_ids),
                    list(r.block_hashes),
                )
                for req_id, r in self.scheduler.requests.items()
            },
            "running": [r.request_id for r in self.scheduler.running],
            "prefills": {r.request_id for r in self.scheduler._inflight_prefills},
        }


def _manager_state(manager: Any) -> dict[str, Any]:
    return {
        "blocks": {
            req_id: [block.block_id for block in blocks]
            for req_id, blocks in manager.req_to_blocks.items()
        },
        "cached": dict(manager.num_cached_block),
        "partial hits": {
            req_id: (index, block.block_id)
            for req_id, (index, block) in manager._partial_hit_reqs.items()
        },
        "copies": [(a.block_id, b.block_id) for a, b in manager._pending_cow_copies],
        "new": list(manager.new_block_ids),
    }


def _output(output: EngineCoreOutput) -> dict[str, Any]:
    fields = msgspec.structs.asdict(output)
    # Events carry times.
    fields["events"] = [event.type for event in output.events or ()]
    return fields


def _scheduled(output: SchedulerOutput) -> dict[str, Any]:
    return {
        "new": [
            (r.req_id, r.block_ids, r.num_computed_tokens)
            for r in output.scheduled_new_reqs
        ],
        "cached": output.scheduled_cached_reqs,
        "tokens": output.num_scheduled_tokens,
        "drafts": output.scheduled_spec_decode_tokens,
        "finished": output.finished_req_ids,
        "copies": output.kv_cache_block_copies,
        "structured": (
            output.has_structured_output_requests,
            output.pending_structured_output_tokens,
        ),
        "skip drafts": output.skip_drafts,
    }


def assert_steps_equal(fast: Side, plain: Side, steps: list[Step]) -> None:
    init_none_hash(sha256)
    for step in steps:
        assert fast.step(step) == plain.step(step)
