# SPDX-License-Identifier: Apache-2.0
"""The lookup's launch parameters, varied: time of a step as a CUDA graph."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import torch
from findings import PASSED, finding

sys.path.insert(0, str(Path(__file__).resolve().parent / "bench"))
import proposer
from vllm.v1.spec_decode import ngram_gpu_kernels as kernels

SIZES = ((1, 128 << 10), (64, 8 << 10), (256, 8 << 10), (256, 32 << 10))


def main() -> int:
    device = torch.device("cuda")
    chosen = (kernels.TILE, kernels.NUM_WARPS, kernels.PROGRAMS_PER_UNIT)
    for rows, length in SIZES:
        work = proposer.make_work(rows, length, 2 * length, "uniform")
        right = proposer.on_the_device(work, device).drafts()
        for launch in itertools.product((256, 512, 1024), (1, 2, 4), (8, 16, 32)):
            kernels.TILE, kernels.NUM_WARPS, kernels.PROGRAMS_PER_UNIT = launch
            ours = proposer.on_the_device(work, device)
            if ours.drafts() != right:
                raise RuntimeError(f"other drafts with {launch}")
            steps = {"graph": proposer.in_a_graph(ours.step)}
            finding(
                f"{rows} x {length}",
                PASSED,
                tile=launch[0],
                warps=launch[1],
                programs_per_unit=launch[2],
                chosen=launch == chosen,
                microseconds=1e3 * proposer.medians_ms(steps, device, quick=True)["graph"],
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
