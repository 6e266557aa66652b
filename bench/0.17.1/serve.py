# SPDX-License-Identifier: Apache-2.0
"""Grounded chats against `vllm serve`: ngram (sync) and ngram_gpu (async), side by side.

    python bench/serve.py --model MODEL [--prompts 2 8 16] [--tokens 256]

Each method gets a server of its own; each number of prompts is sent at once,
after a warm-up, `--repeat` times, and the median is told. Needs an installed
vLLM; on a CPU also the test platform (tests/support). Runs small there, as a test
of itself: its figures say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

METHODS = {"ngram": ["--no-async-scheduling"], "ngram_gpu": ["--async-scheduling"]}
# Output tokens/s that PR 29184 tells for an H20: ngram_gpu async / ngram sync.
TOLD = {2: (466, 357), 8: (1378, 988), 16: (2082, 1726)}
PLACES = ("harbour", "market", "library", "station", "museum", "garden", "theatre", "mill")


def grounded(index: int) -> str:
    """A question whose answer repeats the text that it holds."""
    place = PLACES[index % len(PLACES)]
    facts = " ".join(
        f"Room {n} of the {place} holds {n * 3 + index} chairs, {n + 2} lamps and a blue table."
        for n in range(1, 9)
    )
    return f"Repeat the following report word for word, then list its rooms.\n\n{facts}"


def request(url: str, body: dict | None = None, limit: float = 900) -> str:
    data = None if body is None else json.dumps(body).encode()
    head = {"Content-Type": "application/json"}
    made = urllib.request.Request(url, data, head)
    with urllib.request.urlopen(made, timeout=limit) as answer:
        return answer.read().decode()


def counters(url: str) -> dict[str, float]:
    """The page's speculation counters, summed over engines."""
    sums: dict[str, float] = {}
    pattern = r"^vllm:spec_decode_(\w+)_total\{[^}]*\} (\S+)$"
    for name, value in re.findall(pattern, request(f"{url}/metrics"), re.M):
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


@contextlib.contextmanager
def server(args: argparse.Namespace, method: str) -> Iterator[str]:
    """`vllm serve` with one method; its address, once it is up."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    speculation = {
        "method": method,
        "num_speculative_tokens": args.drafts,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    }
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", args.model),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(args.length)),
        *("--speculative-config", json.dumps(speculation), *METHODS[method], *args.rest),
    ]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        url = f"http://127.0.0.1:{port}"
        try:
            _wait(url, process, log, args.start_limit)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait(url: str, process: subprocess.Popen, log, limit: float) -> None:
    end = time.monotonic() + limit
    while time.monotonic() < end and process.poll() is None:
        try:
            request(f"{url}/health", limit=5)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    log.seek(0)
    sys.exit(f"error: the server did not come up\n{log.read()[-4000:]}")


def burst(url: str, model: str, count: int, tokens: int, first: int) -> float:
    """Send `count` chats at once; output tokens per second."""

    def ask(index: int) -> int:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": grounded(index)}],
            "temperature": 0,
            "max_tokens": tokens,
            "ignore_eos": True,
        }
        return json.loads(request(f"{url}/v1/chat/completions", body))["usage"]["completion_tokens"]

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        start = time.perf_counter()
        made = sum(pool.map(ask, range(first, first + count)))
        return made / (time.perf_counter() - start)


def measure(args: argparse.Namespace, method: str) -> list[dict]:
    rows = []
    with server(args, method) as url:
        burst(url, args.model, min(args.prompts), args.tokens, 0)
        for count in args.prompts:
            before = counters(url)
            speeds = [
                burst(url, args.model, count, args.tokens, 100 * (1 + turn))
                for turn in range(args.repeat)
            ]
            gained = {k: v - before.get(k, 0.0) for k, v in counters(url).items()}
            drafted = gained.get("num_draft_tokens", 0.0)
            rows.append(
                {
                    "method": method,
                    "prompts": count,
                    "tokens/s": round(statistics.median(speeds), 1),
                    "drafted": int(drafted),
                    "acceptance": round(
                        gained.get("num_accepted_tokens", 0.0) / drafted if drafted else 0.0, 3
                    ),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Throughput on grounded chats.")
    parser.add_argument("--model", default=os.environ.get("NGRAM_REAL_MODEL"))
    parser.add_argument("--prompts", type=int, nargs="+", default=[2, 8, 16])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--start-limit", type=float, default=900)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    args, args.rest = parser.parse_known_args()
    if not args.model:
        parser.error("--model, or NGRAM_REAL_MODEL, must name a model")
    rows = [row for method in METHODS for row in measure(args, method)]
    print("| prompts | method | tokens/s | drafted | acceptance | told for an H20 |")
    print("|---|---|---|---|---|---|")
    for row in sorted(rows, key=lambda row: (row["prompts"], row["method"])):
        told = TOLD.get(row["prompts"], ("", ""))[row["method"] == "ngram"]
        print(
            f"| {row['prompts']} | {row['method']} | {row['tokens/s']} | {row['drafted']} "
            f"| {row['acceptance']} | {told} |"
        )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
