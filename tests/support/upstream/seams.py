# SPDX-License-Identifier: Apache-2.0
"""The seams of upstream's test harness that assume a CUDA device.

Loaded with `-p upstream.seams`, before upstream's conftest binds any name.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

# Functions of torch that upstream calls with pin_memory=True.
_PINNING = ("zeros", "empty", "ones", "full")
_ATTENTION_BACKENDS = ["FLASH_ATTN", "TREE_ATTN"]


def _without_pinning(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return plain(*args, **kwargs)

    return wrapped


def open_torch() -> None:
    """Pinned memory and memory figures need a driver; tests ask for both."""
    for name in _PINNING:
        setattr(torch, name, _without_pinning(getattr(torch, name)))
    torch.cuda.mem_get_info = lambda *_args, **_kwargs: (0, 0)  # type: ignore[assignment]


def open_distributed() -> None:
    """Upstream's `dist_init` fixture asks for NCCL by name; gloo runs anywhere."""
    import vllm.distributed
    import vllm.distributed.parallel_state as state

    plain = state.init_distributed_environment

    @functools.wraps(plain)
    def init_distributed_environment(*args: Any, **kwargs: Any) -> Any:
        if len(args) < 5 and kwargs.get("backend", "nccl") == "nccl":
            kwargs["backend"] = "gloo"
        return plain(*args, **kwargs)

    state.init_distributed_environment = init_distributed_environment
    vllm.distributed.init_distributed_environment = init_distributed_environment


def open_test_utilities() -> None:
    """Helpers of tests/utils.py that look for a device while tests are collected."""
    import tests.utils as utils

    utils.get_attn_backend_list_based_on_platform = lambda: list(_ATTENTION_BACKENDS)
    utils.cuda_device_count_stateless = lambda: 1
    utils.large_gpu_mark = lambda min_gb: pytest.mark.skipif(False, reason="")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Open everything before upstream's conftest binds the names."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    open_torch()
    open_distributed()
    open_test_utilities()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Keep torch's trace logger quiet.

    pytest attaches its capture handlers to loggers that do not propagate; torch
    then renders every trace record, and vLLM's needs a model configuration that
    unit tests do not set.
    """
    logging.getLogger("torch.__trace").handlers.clear()
    return (yield)


def _plain_encoder_flag(*args: Any, **kwargs: Any) -> MagicMock:
    return MagicMock(*args, **{"is_encoder_decoder": False, **kwargs})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two mends of the tests themselves, alike on the pristine pin and the series.

    Upstream's cleanup after each test takes 0.3 s; fixtures that start
    distributed groups clean up by themselves. And the mock model configuration
    of test_scheduler_streaming is truthy in every attribute, so that every
    model passes for an encoder-decoder.
    """
    for item in items:
        item.add_marker("skip_global_cleanup")
        module = getattr(item, "module", None)
        if module is not None and module.__name__.endswith("test_scheduler_streaming"):
            module.MagicMock = _plain_encoder_flag
