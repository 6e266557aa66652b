# SPDX-License-Identifier: Apache-2.0
"""Runs the device checks, each with a time limit of its own.

    ./run.sh [PART ...]        results in $OUT, or in ./device-results
    PATIENCE=3 ./run.sh        three times the time, for a slow or busy machine

Unpacks what the bundle holds, then runs the parts in their order. Every finding
is a line of findings.jsonl as soon as it is known, so that a run that is cut
short still tells what it saw. Needs nothing but Python beside the bundle.

Exit status: 0 if everything passed, 1 if anything failed or ran out of time,
2 if nothing failed but something was not run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from findings import FAILED, NOT_RUN, PASSED, finding

HERE = Path(__file__).resolve().parent
OUT = Path(os.environ.get("OUT", "device-results")).resolve()
WORK = OUT / "work"
PATIENCE = float(os.environ.get("PATIENCE", "1"))
PYTEST = ("-m", "pytest", "-q", "--noconftest", "-p", "findings", "-p", "no:cacheprovider")
LOOKUP_TESTS = (
    "tests/v1/spec_decode/test_ngram_gpu.py",
    "tests/v1/spec_decode/test_device_token_buffer.py",
)
GRAPH_TESTS = "capture_in_a_cuda_graph or no_wait_no_allocation"
# With a token buffer that is seeded from pinned memory, which needs a driver.
BUFFER_TESTS = "test_device_token_buffer or proposer_in_a_running_engine"


@dataclass(frozen=True)
class Part:
    """One check.

    Attributes:
        seconds: when it is stopped.
        command: what Python is started with, in the folder of vLLM's tree.
        before: a program that the interpreter is started by.
        needs_gpu: without one it is reported as not run.
    """

    name: str
    seconds: int
    command: Sequence[str]
    before: Sequence[str] = ()
    needs_gpu: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


def sanitizer(tool: str) -> Part:
    """A small batch of random histories under one of the memory checkers."""
    return Part(
        f"sanitizer-{tool}",
        60,
        (*PYTEST, LOOKUP_TESTS[0], "-k", "test_kernel_random_histories and 3-0"),
        before=("compute-sanitizer", "--tool", tool, "--error-exitcode", "9"),
        needs_gpu=True,
        env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )


def parts(gpu: bool) -> list[Part]:
    """All checks, those first that say most in the least time: 590 seconds in all."""
    device = "cuda" if gpu else "cpu"
    bench = str(HERE / "bench")
    lookup_alone = f"not ({GRAPH_TESTS} or {BUFFER_TESTS})"
    proposer = ("--device", device, "--quick", "--vllm-tree", ".")
    rows = ("--num-rows", "1", "16", "64", "256", "1024", "--num-blocks", "2")
    rows += ("--json", str(OUT / "bookkeeping.json"))
    return [
        Part("imports", 60, (str(HERE / "imports.py"),)),
        Part("kernels", 100, (*PYTEST, LOOKUP_TESTS[0], "-k", lookup_alone)),
        Part("buffer", 40, (*PYTEST, *LOOKUP_TESTS, "-k", BUFFER_TESTS), needs_gpu=True),
        Part("graphs", 30, (*PYTEST, LOOKUP_TESTS[0], "-k", GRAPH_TESTS), needs_gpu=True),
        sanitizer("memcheck"),
        sanitizer("racecheck"),
        Part("engine", 100, (str(HERE / "engine.py"),), needs_gpu=True),
        Part("proposer", 60, (f"{bench}/proposer.py", "--out", str(OUT / "proposer"), *proposer)),
        Part("sweep", 30, (str(HERE / "sweep.py"),), needs_gpu=True),
        Part("bookkeeping", 50, ("benchmarks/benchmark_bookkeeping.py", *rows)),
    ]


def unpack() -> None:
    """Lay out vLLM with the series, packages and models."""
    shutil.rmtree(WORK, ignore_errors=True)
    for name in ("tree", "site", "models"):
        with tarfile.open(HERE / f"{name}.tar.gz") as archive:
            archive.extractall(WORK / name, filter="data")


def variables(gpu: bool) -> dict[str, str]:
    """The environment of every part."""
    dropped = ("PYTHON", "VLLM_", "HF_", "TRITON_", "PYTEST_")
    plain = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    paths = (WORK / "tree", WORK / "site", HERE)
    plain |= {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HOME": str(WORK / "models"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(WORK / "cache"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "TRITON_CACHE_DIR": str(WORK / "triton"),
        "DEVICE_FINDINGS": str(OUT / "findings.jsonl"),
    }
    if not gpu:
        plain |= {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
    return plain


def run(part: Part, plain: Mapping[str, str]) -> None:
    """One part: its own findings, and one about the whole of it."""
    env = {**plain, **part.env}
    limit = part.seconds * PATIENCE
    start = time.monotonic()
    log = OUT / f"{part.name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*part.before, sys.executable, *part.command],
            cwd=WORK / "tree",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as stop:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(stop, KeyboardInterrupt):
                raise
            finding("the whole part", FAILED, limit, reason=f"over {limit:.0f} s")
            return
    spent = time.monotonic() - start
    if status:
        lines = log.read_text("utf-8", "replace").strip().splitlines() or ["no output"]
        finding("the whole part", FAILED, spent, status=status, last_line=lines[-1][:300])
    else:
        finding("the whole part", PASSED, spent)


def has_gpu() -> bool:
    """Whether PyTorch sees a CUDA device, asked in a process of its own."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def lacking(part: Part, gpu: bool) -> str:
    """What a part needs and this machine does not have."""
    if part.needs_gpu and not gpu:
        return "a CUDA device"
    if part.before and shutil.which(part.before[0]) is None:
        return part.before[0]
    return ""


def summary(path: Path) -> int:
    """Print how many findings of each part came out how; the exit status."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    outcomes = {line["outcome"] for line in lines}
    for name in dict.fromkeys(line["part"] for line in lines):
        its = [line["outcome"] for line in lines if line["part"] == name]
        counts = (f"{its.count(o)} {o}" for o in (PASSED, FAILED, NOT_RUN) if o in its)
        print(f"{name}: {', '.join(counts)}")
    print(f"findings in {path}")
    return 1 if FAILED in outcomes else 2 if NOT_RUN in outcomes else 0


def main(words: Sequence[str]) -> int:
    gpu = has_gpu()
    known = {part.name: part for part in parts(gpu)}
    unknown = sorted(set(words) - set(known))
    if unknown:
        print(f"no part {unknown[0]}: choose of {', '.join(known)}")
        return 1
    wanted = [part for name, part in known.items() if not words or name in words]
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / "findings.jsonl"
    path.unlink(missing_ok=True)
    plain = variables(gpu)
    os.environ |= {"DEVICE_FINDINGS": str(path), "DEVICE_PART": "start"}
    start = time.monotonic()
    unpack()
    finding("unpacking", PASSED, time.monotonic() - start)
    for part in wanted:
        print(f"… {part.name}", flush=True)
        os.environ["DEVICE_PART"] = part.name
        missing = lacking(part, gpu)
        if missing:
            finding("the whole part", NOT_RUN, reason=f"needs {missing}")
        else:
            run(part, {**plain, "DEVICE_PART": part.name})
    shutil.rmtree(WORK, ignore_errors=True)
    return summary(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
