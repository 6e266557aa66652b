# SPDX-License-Identifier: Apache-2.0
"""Imports all that the other parts use, and says what the machine is.

A module that is missing is found here, in a minute and without a GPU.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import sys
import time

import torch
from findings import FAILED, PASSED, finding

MODULES = (
    "vllm.v1.spec_decode.ngram_gpu",
    "vllm.v1.worker.bookkeeping",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu_worker",
    "vllm.platforms.cuda",
    "vllm.vllm_flash_attn",
    "vllm.v1.attention.backends.triton_attn",
    "vllm.model_executor.models.llama",
    "vllm.entrypoints.llm",
    "vllm.v1.engine.llm_engine",
)
PACKAGES = ("torch", "triton", "numba", "numpy", "transformers", "pytest")


def main() -> int:
    failed = 0
    for name in MODULES:
        start = time.monotonic()
        try:
            importlib.import_module(name)
        except Exception as error:
            failed += 1
            finding(name, FAILED, time.monotonic() - start, reason=f"{error!r}")
        else:
            finding(name, PASSED, time.monotonic() - start)
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    cuda = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if cuda else platform.machine()
    about = {"device": device, "cuda": torch.version.cuda if cuda else "", **versions}
    finding("machine", PASSED, python=platform.python_version(), **about)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
