# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` with ngram_gpu and async scheduling answers OpenAI requests."""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest
from cpurig.models.ours import TINY_LLAMA
from openai import OpenAI

SPECULATION = {
    "method": "ngram_gpu",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
}
LOOP = "a b c d e " * 8
START_LIMIT = 240


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_up(url: str, process: subprocess.Popen, log) -> None:
    limit = time.monotonic() + START_LIMIT
    while time.monotonic() < limit:
        if process.poll() is not None:
            break
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    log.seek(0)
    raise RuntimeError(f"the server did not come up:\n{log.read()[-6000:]}")


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    port = _free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", TINY_LLAMA),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "512"),
        *("--max-num-seqs", "16", "--enforce-eager", "--block-size", "32"),
        *("--dtype", "float32"),
        *("--speculative-config", json.dumps(SPECULATION)),
    ]
    # The engine gets a process of its own, as for any user of the server.
    environment = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
    }
    path = tmp_path_factory.mktemp("server") / "log"
    with path.open("w+") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_until_up(address, process, log)
            assert "Asynchronous scheduling is enabled" in path.read_text()
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture(scope="module")
def client(url) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", timeout=120)


def _complete(client: OpenAI, prompt: str, **options):
    # The model has more tokens than the tokenizer has words.
    words = {"ignore_eos": True, "allowed_token_ids": list(range(60, 500))}
    extra = {**words, **options.pop("extra", {})}
    fixed = {"model": TINY_LLAMA, "temperature": 0, "max_tokens": 32, "extra_body": extra}
    return client.completions.create(prompt=prompt, **{**fixed, **options})


def _counters(url: str) -> dict[str, float]:
    page = httpx.get(f"{url}/metrics").text
    found = re.findall(r"^vllm:(spec_decode_\w+_total)\{[^}]*?\} (\S+)$", page, re.M)
    counters: dict[str, float] = {}
    for name, value in found:
        counters[name] = counters.get(name, 0.0) + float(value)
    return counters


def test_streamed_text_is_the_whole_text(client):
    whole = _complete(client, LOOP).choices[0].text
    chunks = [c.choices[0].text for c in _complete(client, LOOP, stream=True) if c.choices]
    assert whole and "".join(chunks) == whole
    # Speculation puts several tokens into one chunk.
    assert len(chunks) < 32


def test_chat_and_grammar(client):
    answer = client.chat.completions.create(
        model=TINY_LLAMA,
        messages=[{"role": "user", "content": "Tell me about the number 1"}],
        temperature=0,
        max_tokens=40,
        extra_body={"structured_outputs": {"regex": "(ab|cd){3,6}"}},
    )
    assert re.fullmatch("(ab|cd){3,6}", answer.choices[0].message.content)


def test_concurrent_requests_get_what_they_get_alone(client):
    prompts = [LOOP[2 * i :] + str(i) for i in range(8)]
    alone = [_complete(client, p).choices[0].text for p in prompts]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = [r.choices[0].text for r in pool.map(lambda p: _complete(client, p), prompts)]
    assert together == alone


def test_client_that_leaves_does_not_disturb_others(client):
    before = _complete(client, LOOP).choices[0].text
    stream = _complete(client, "a b c", stream=True, max_tokens=400)
    next(iter(stream))
    stream.close()
    assert _complete(client, LOOP).choices[0].text == before


def test_what_speculation_cannot_serve_is_refused(client):
    with pytest.raises(Exception, match="logit_bias"):
        _complete(client, LOOP, logit_bias={"30": 5})
    with pytest.raises(Exception, match="min_p"):
        _complete(client, LOOP, temperature=1, extra={"min_p": 0.5})


def test_metrics_page_counts_real_drafts(client, url):
    before = _counters(url)
    _complete(client, LOOP, max_tokens=64)
    after = _counters(url)
    gained = {name: after[name] - before.get(name, 0.0) for name in after}
    drafts = gained["spec_decode_num_drafts_total"]
    drafted = gained["spec_decode_num_draft_tokens_total"]
    accepted = gained["spec_decode_num_accepted_tokens_total"]
    assert 0 < drafts <= drafted <= 3 * drafts
    assert 0 < accepted <= drafted
