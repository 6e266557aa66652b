"""Figures of the n-gram lookup on the device.

    python bench/proposer.py --out DIR [--device cpu|cuda] [--quick]

Writes DIR/proposer.json and DIR/proposer.md. Without a GPU the lookup is the
PyTorch reference and the sizes are small: this tests the script and gives the
comparison with the dense design on a CPU. Needs a vLLM with the series applied.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.spec_decode.ngram_gpu import NgramGPUProposer
from vllm.v1.spec_decode.ngram_proposer import NgramProposer

ROOT = Path(__file__).resolve().parent.parent
COMPILE_SCRIPT = "tests/v1/spec_decode/ngram_gpu_compile.py"

MIN_N, MAX_N, K = 2, 5, 5
VOCAB_SIZE = 32_000
BLOCK_SIZE = 16
MIB = 1 << 20

# A worker's KV cache: Llama-3.1-8B in bfloat16 (131,072 bytes a token), 100 GiB.
KV_BYTES_PER_TOKEN = 2 * 32 * 8 * 128 * 2
KV_TOKENS = 100 * (1 << 30) // KV_BYTES_PER_TOKEN


# The work


@dataclass
class Work:
    """A decode step of `rows` requests that have `length` tokens each."""

    rows: int
    length: int
    max_model_len: int
    histories: torch.Tensor  # [rows, length] int32, on the CPU
    sampled: torch.Tensor  # [rows, 1] int32, on the CPU


def make_work(rows: int, length: int, max_model_len: int, tokens: str) -> Work:
    """`tokens`: "uniform" hardly ever matches, so that every position is read;
    "text" has the token frequencies of a natural language and copied passages."""
    rng = np.random.default_rng(rows * 31 + length)
    shape = (rows, length)
    if tokens == "uniform":
        histories = rng.integers(0, VOCAB_SIZE, shape, dtype=np.int32)
    else:
        rank = VOCAB_SIZE ** rng.random(shape, dtype=np.float32)
        histories = rank.astype(np.int32) - 1
        part = max(1, length // 16)
        histories[:, -part:] = histories[:, part : 2 * part]
    if tokens == "uniform":
        sampled = rng.integers(0, VOCAB_SIZE, (rows, 1), dtype=np.int32)
    else:  # the copied passage goes on
        sampled = histories[:, 2 * part : 2 * part + 1].copy()
    return Work(
        rows,
        length,
        max_model_len,
        torch.from_numpy(histories),
        torch.from_numpy(sampled),
    )


def configuration(max_num_seqs: int, max_model_len: int) -> SimpleNamespace:
    """As much of a VllmConfig as the proposers read."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=MIN_N, prompt_lookup_max=MAX_N, num_speculative_tokens=K
        ),
        model_config=SimpleNamespace(
            max_model_len=max_model_len, get_vocab_size=lambda: VOCAB_SIZE
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )


# The contestants. Each returns a function that does one step, and gives the
# drafts of the step as lists so that they can be compared.


class Contestant:
    def __init__(self, step: Callable[[], object], drafts: Callable[[], list]):
        self.step = step
        self.drafts = drafts


def make_proposer(work: Work, device: torch.device) -> NgramGPUProposer:
    proposer = NgramGPUProposer(configuration(work.rows, work.max_model_len), device)
    blocks_per_row = -(-(work.length + 1) // BLOCK_SIZE)
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float16
    )
    group = KVCacheGroupSpec(["layer"], spec)
    num_blocks = work.rows * blocks_per_row + 1
    proposer.initialize_kv_cache(KVCacheConfig(num_blocks, [], [group]), [BLOCK_SIZE])
    return proposer


def on_the_device(work: Work, device: torch.device) -> Contestant:
    """Ours: scatter of the step's token and lookup, over scattered blocks."""
    proposer = make_proposer(work, device)
    buffer = proposer.token_buffer
    assert buffer is not None
    blocks_per_row = -(-(work.length + 1) // BLOCK_SIZE)
    order = torch.randperm(work.rows * blocks_per_row, dtype=torch.int32) + 1
    table = order.view(work.rows, blocks_per_row).to(device)
    pos = torch.arange(work.length, device=device)
    for row in range(work.rows):
        slots = table[row, pos // BLOCK_SIZE].long() * BLOCK_SIZE + pos % BLOCK_SIZE
        buffer.scatter(work.histories[row].to(device), slots)
        if row == work.rows - 1:
            last_slots = table[:, (work.length - 1) // BLOCK_SIZE].long() * BLOCK_SIZE
            last_slots += (work.length - 1) % BLOCK_SIZE
    arguments = dict(
        input_ids=work.histories[:, -1].contiguous().to(device),
        slot_mapping=last_slots,
        block_table=table,
        seq_lens=torch.full(
            (work.rows,), work.length, dtype=torch.int32, device=device
        ),
        sampled_token_ids=work.sampled.to(device),
        discard_mask=torch.zeros(work.rows, dtype=torch.bool, device=device),
        max_seq_len=work.length,
    )

    def drafts() -> list:
        out = proposer.propose(**arguments)
        counts = out.num_valid_drafts.tolist()
        return [d[:n] for d, n in zip(out.draft_token_ids.tolist(), counts)]

    return Contestant(lambda: proposer.propose(**arguments), drafts)


def dense_lookup(
    history: torch.Tensor, lengths: torch.Tensor, max_model_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The dense design: all windows of a [rows, max_model_len] buffer against the
    end of each row, once for each n, longest first."""
    rows, width = history.shape
    start = torch.zeros(rows, dtype=torch.int64, device=history.device)
    found = torch.zeros(rows, dtype=torch.bool, device=history.device)
    for n in range(MAX_N, MIN_N - 1, -1):
        tail = (lengths[:, None] - n + torch.arange(n, device=history.device)).clamp(0)
        suffix = history.gather(1, tail)
        windows = history.unfold(1, n, 1)
        match = (windows == suffix[:, None, :]).all(dim=-1)
        ends = torch.arange(n, width + 1, device=history.device)
        match &= ends[None, :] < lengths[:, None]
        has = match.any(dim=1)
        first = match.to(torch.int8).argmax(dim=1) + n
        start = torch.where(has & ~found, first, start)
        found |= has
    count = torch.minimum(lengths - start, max_model_len - lengths).clamp(0, K)
    count = torch.where(found, count, 0)
    at = start[:, None] + torch.arange(K, device=history.device)
    return history.gather(1, at.clamp(max=width - 1)), count


def dense_design(work: Work, device: torch.device) -> Contestant:
    """Compiled on a GPU, as such designs are; eager on a CPU."""
    history = torch.zeros(
        (work.rows, work.max_model_len), dtype=torch.int32, device=device
    )
    history[:, : work.length] = work.histories.to(device)
    lengths = torch.full((work.rows,), work.length, dtype=torch.int64, device=device)
    sampled = work.sampled.to(device)
    lookup = dense_lookup
    if device.type == "cuda":
        lookup = torch.compile(dense_lookup, dynamic=False, fullgraph=True)

    def step():
        history.scatter_(1, lengths[:, None], sampled)
        return lookup(history, lengths + 1, work.max_model_len)

    def drafts() -> list:
        ids, count = step()
        return [d[:n] for d, n in zip(ids.tolist(), count.tolist())]

    return Contestant(step, drafts)


def on_the_cpu(work: Work, device: torch.device) -> Contestant:
    """The CPU's proposer with what comes with it: the sampled ids to the host,
    lists, the drafts back to the device."""
    proposer = NgramProposer(configuration(work.rows, work.max_model_len))
    token_ids = np.zeros((work.rows, work.length + 1), dtype=np.int32)
    token_ids[:, : work.length] = work.histories.numpy()
    num_tokens = np.full(work.rows, work.length + 1, dtype=np.int32)
    sampled = work.sampled.to(device)

    def propose() -> list:
        rows = sampled.tolist()
        token_ids[:, work.length] = [row[0] for row in rows]
        return proposer.propose(rows, num_tokens, token_ids)

    def step():
        drafts = propose()
        padded = [d + [0] * (K - len(d)) for d in drafts]
        return torch.tensor(padded, dtype=torch.int32).to(device)

    return Contestant(step, propose)


# Time


def medians_ms(
    steps: dict[str, Callable[[], object]], device: torch.device, quick: bool
) -> dict[str, float]:
    """Median of each step, in milliseconds. They take turns, so that whatever else
    the machine does meets them all."""
    measure = _cuda_ms if device.type == "cuda" else _cpu_ms
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(1 if quick else 3):
        for step in steps.values():
            measure(step)
    deadline = time.perf_counter() + (0.2 if quick else 4.0)
    rounds = 0
    while rounds < 5 or (time.perf_counter() < deadline and rounds < 200):
        for name, step in steps.items():
            times[name].append(measure(step))
        rounds += 1
    return {name: statistics.median(values) for name, values in times.items()}


def _cpu_ms(step: Callable[[], object]) -> float:
    # One thread, as the CPU's proposer has: on a busy machine more of them mostly
    # wait for each other. Numba shares OpenMP with PyTorch and undoes the setting.
    torch.set_num_threads(1)
    begin = time.process_time()
    step()
    return 1e3 * (time.process_time() - begin)


_FLUSH: dict[str, torch.Tensor] = {}


def _cuda_ms(step: Callable[[], object]) -> float:
    if not _FLUSH:  # larger than any L2 cache: each step finds it cold
        _FLUSH["buffer"] = torch.empty(256 * MIB, dtype=torch.int8, device="cuda")
    _FLUSH["buffer"].zero_()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def in_a_graph(step: Callable[[], object]) -> Callable[[], object]:
    """The step without the time the host takes to launch it."""
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def copy_bandwidth(device: torch.device, quick: bool) -> float:
    """Bytes read per second while a device copies memory to itself."""
    size = (16 if quick or device.type == "cpu" else 4096) * MIB
    source = torch.zeros(size, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    # A copy reads and writes: count both, as the lookup only reads.
    steps = {"copy": lambda: target.copy_(source)}
    return 2 * size / (1e-3 * medians_ms(steps, device, quick)["copy"])


# Tables


def memory_table() -> Iterator[dict]:
    """Bytes of the tensors themselves; those of the dense design by its shape."""
    for max_model_len in [8 << 10, 32 << 10, 128 << 10, 1 << 20]:
        for seqs in [64, 256, 1024, 2048]:
            proposer = NgramGPUProposer(
                configuration(seqs, max_model_len), torch.device("cpu")
            )
            tensors = [t for out in proposer._output_sets for t in out]
            scratch = sum(t.nbytes for t in [*tensors, proposer._state])
            dense = torch.empty((seqs, max_model_len), dtype=torch.int32, device="meta")
            yield {
                "max_model_len": max_model_len,
                "max_num_seqs": seqs,
                "buffer_bytes": 4 * KV_TOKENS,
                "scratch_bytes": scratch,
                "dense_bytes": dense.nbytes,
            }


def compile_table(vllm_tree: Path, quick: bool) -> list[dict]:
    """Registers and spills of the kernels, compiled without a GPU."""
    script = vllm_tree / COMPILE_SCRIPT
    if not script.exists():
        print(f"no {script}: the table of compiled kernels is left out")
        return []
    command = [sys.executable, str(script), *(["--quick", "--sm", "90"] * quick)]
    env = {**os.environ, "TRITON_INTERPRET": "0"}
    result = subprocess.run(command, env=env, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{script} failed:\n{result.stderr}")
    lines = result.stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def sizes(device: torch.device, quick: bool) -> Iterator[tuple[int, int, int]]:
    """(rows, length, max_model_len)"""
    if device.type == "cpu":
        if quick:
            yield from [(1, 200, 256), (4, 300, 1024)]
            return
        for rows in [1, 16, 64]:
            for length in [1 << 10, 8 << 10]:
                yield rows, length, length + 64
                yield rows, length, 32 << 10
        return
    yield 256, 8 << 10, 128 << 10
    lengths = [1 << 10, 8 << 10] if quick else [1 << e for e in range(10, 21, 2)]
    for rows in [1, 16] if quick else [1, 4, 16, 64, 256, 1024]:
        for length in lengths:
            if rows * length <= 1 << 30:
                yield rows, length, max(2 * length, 8 << 10)


def time_table(device: torch.device, quick: bool) -> Iterator[dict]:
    for tokens in ["uniform", "text"]:
        for rows, length, max_model_len in sizes(device, quick):
            work = make_work(rows, length, max_model_len, tokens)
            yield time_row(work, tokens, device, quick)


def time_row(work: Work, tokens: str, device: torch.device, quick: bool) -> dict:
    ours = on_the_device(work, device)
    expected = ours.drafts()
    steps = {"ours_ms": ours.step}
    if device.type == "cuda":
        steps["ours_graph_ms"] = in_a_graph(ours.step)
    makers = {"dense_ms": dense_design, "cpu_ms": on_the_cpu}
    if work.rows * work.max_model_len > 1 << 28:
        del makers["dense_ms"]  # its windows do not fit into memory
    if work.rows * work.length > 1 << 26:
        del makers["cpu_ms"]  # seconds a step
    for name, make in makers.items():
        other = make(work, device)
        if other.drafts() != expected:
            raise RuntimeError(f"{name} and ours differ for {work.rows}x{work.length}")
        steps[name] = other.step
    ms = medians_ms(steps, device, quick)
    fastest = ms.get("ours_graph_ms", ms["ours_ms"])
    row = {
        "tokens": tokens,
        "rows": work.rows,
        "length": work.length,
        "max_model_len": work.max_model_len,
        "drafts": sum(map(len, expected)),
        **ms,
        "bytes_per_s": 4 * work.rows * work.length / (1e-3 * fastest),
    }
    print(json.dumps(row), flush=True)
    return row


# Report


def human(value: int) -> str:
    for unit, size in [("M", 1 << 20), ("K", 1 << 10)]:
        if value >= size and value % size == 0:
            return f"{value // size}{unit}"
    return str(value)


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def report_memory(rows: list[dict]) -> str:
    text = (
        f"KV cache of {KV_TOKENS:,} tokens (100 GiB, Llama-3.1-8B in bfloat16), k={K}. "
        "MiB.\n\n"
    )
    header = ["context", "sequences", "buffer", "scratch", "dense design", "factor"]
    body = []
    for r in rows:
        ours = r["buffer_bytes"] + r["scratch_bytes"]
        body.append(
            [
                human(r["max_model_len"]),
                str(r["max_num_seqs"]),
                f"{r['buffer_bytes'] / MIB:.2f}",
                f"{r['scratch_bytes'] / MIB:.3f}",
                f"{r['dense_bytes'] / MIB:,.0f}",
                f"{r['dense_bytes'] / ours:,.1f}",
            ]
        )
    return text + markdown(header, body)


def report_compile(rows: list[dict]) -> str:
    header = ["kernel", "sm", "n", "k", "block", "registers", "spilled", "shared"]
    body = []
    for r in rows:
        n = "-".join(map(str, r["n"])) if "n" in r else ""
        cells = [r["kernel"], r["sm"], n, r.get("k", ""), r.get("block_size", "")]
        cells += [r["registers"], r["spilled_bytes"], r["shared_bytes"]]
        body.append([str(c) for c in cells])
    return markdown(header, body)


def report_times(rows: list[dict], bandwidth: float) -> str:
    names = {
        "ours_ms": "ours",
        "ours_graph_ms": "ours, graph",
        "dense_ms": "dense",
        "cpu_ms": "CPU proposer",
    }
    names = {key: name for key, name in names.items() if any(key in r for r in rows)}
    header = ["tokens", "rows", "length", "limit", "drafts"]
    header += [f"{name}, ms" for name in names.values()]
    header += ["dense / ours", "CPU / ours", "GB/s", "of copy"]
    body = []
    for r in rows:
        ours = r.get("ours_graph_ms", r["ours_ms"])
        cells = [r["tokens"], r["rows"], human(r["length"]), human(r["max_model_len"])]
        cells += [r["drafts"], *(f"{r[k]:.4g}" if k in r else "" for k in names)]
        for other in ("dense_ms", "cpu_ms"):
            cells.append(f"{r[other] / ours:.1f}" if other in r else "")
        cells.append(f"{r['bytes_per_s'] / 1e9:.2f}")
        cells.append(f"{100 * r['bytes_per_s'] / bandwidth:.1f} %")
        body.append([str(c) for c in cells])
    text = f"Copy on the device: {bandwidth / 1e9:.1f} GB/s (read and written). "
    clock = (
        "GPU time, caches cold"
        if any("ours_graph_ms" in r for r in rows)
        else ("CPU time of one thread")
    )
    text += f"n {MIN_N}-{MAX_N}, k {K}, medians, {clock}.\n\n"
    return text + markdown(header, body)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="a test of the script")
    parser.add_argument(
        "--vllm-tree",
        type=Path,
        default=ROOT / "overlay" / "0.17.1",
        help="tree with the series' own files (default: overlay/0.17.1/)",
    )
    args = parser.parse_args()
    name = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    is_gpu = name == "cuda"
    machine = torch.cuda.get_device_name() if is_gpu else platform.machine()
    figures = {
        "device": f"{name}: {machine}",
        "torch": torch.__version__,
        "quick": args.quick,
        "memory": list(memory_table()),
        "compiled": compile_table(args.vllm_tree, args.quick),
        "copy_bytes_per_s": copy_bandwidth(device, args.quick),
        "times": list(time_table(device, args.quick)),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "proposer.json").write_text(json.dumps(figures, indent=1) + "\n")
    text = "\n".join(
        [
            "# Figures of the n-gram lookup on the device\n",
            f"{figures['device']}, torch {figures['torch']}\n",
            "## Memory\n",
            report_memory(figures["memory"]),
            "## Compiled kernels\n",
            report_compile(figures["compiled"]),
            "## Time\n",
            report_times(figures["times"], figures["copy_bytes_per_s"]),
        ]
    )
    (args.out / "proposer.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
