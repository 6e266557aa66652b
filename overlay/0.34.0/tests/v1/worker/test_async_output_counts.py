# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""`AsyncOutput` brings draft counts to the host in the copy of the token counts."""

import pytest
import torch

from vllm.platforms import current_platform
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.gpu import async_utils
from vllm.v1.worker.gpu.async_utils import AsyncOutput
from vllm.v1.worker.gpu.sample.output import SamplerOutput

pytestmark = pytest.mark.skipif(
    not current_platform.is_cuda_alike(), reason="Requires CUDA streams"
)
DEVICE = current_platform.device_type


def _get_output(with_drafts: bool) -> ModelRunnerOutput:
    sampled = torch.tensor([[5, 6, 7], [8, 0, 0], [0, 0, 0]], device=DEVICE)
    counts = torch.tensor([[3, 1, 0], [2, 1, 0]], dtype=torch.int32, device=DEVICE)
    output = SamplerOutput(
        sampled_token_ids=sampled,
        logprobs_tensors=None,
        num_nans=None,
        num_sampled=counts[0],
        num_rejected=torch.zeros_like(counts[0]),
        counts=counts if with_drafts else None,
    )
    return AsyncOutput(
        ModelRunnerOutput(req_ids=["a", "b", "c"]),
        output,
        output.num_sampled,
        main_stream=torch.cuda.current_stream(),
        copy_stream=torch.cuda.Stream(),
        check_ep_fault=False,
        pending_aux_output=None,
    ).get_output()


@pytest.mark.parametrize("with_drafts", [False, True])
def test_draft_counts_need_no_copy_of_their_own(monkeypatch, with_drafts):
    copied = []

    def copy(x: torch.Tensor):
        copied.append(tuple(x.shape))
        return plain_copy(x)

    plain_copy = async_utils.async_copy_to_np
    monkeypatch.setattr(async_utils, "async_copy_to_np", copy)

    output = _get_output(with_drafts)

    assert output.sampled_token_ids == [[5, 6, 7], [8], []]
    assert output.num_verified_drafts == ([2, 1, 0] if with_drafts else None)
    assert copied == [(3, 3), (2, 3) if with_drafts else (3,)]
