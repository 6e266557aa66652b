# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Compiles the kernels of the n-gram lookup for GPUs that need not be there.

Prints one JSON object per line: what the compiled kernel takes of a
multiprocessor. Run it with TRITON_INTERPRET unset or 0.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import regex as re

from vllm.triton_utils import triton
from vllm.v1.spec_decode import ngram_gpu_kernels as kernels
from vllm.v1.spec_decode.token_buffer import SCATTER_BLOCK, _scatter_kernel

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

POINTER_TYPES = {"discard_ptr": "*i1", "slot_mapping_ptr": "*i64"}


def compile_kernel(kernel, capability: int, num_warps: int, constants: dict) -> dict:
    """Returns registers, spilled bytes and shared memory of a compiled kernel."""
    names = kernel.arg_names
    signature = {
        name: "constexpr"
        if name in constants
        else POINTER_TYPES.get(name, "*i32" if name.endswith("_ptr") else "i32")
        for name in names
    }
    attrs = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if signature[name].startswith("*")
    }
    source = triton.compiler.ASTSource(
        kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        attrs,
    )
    compiled = triton.compile(
        source,
        target=triton.backends.compiler.GPUTarget("cuda", capability, 32),
        options={"num_warps": num_warps},
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        usage = subprocess.run(
            [TOOLS / "cuobjdump", "-res-usage", cubin.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", usage)
    assert found is not None, usage
    registers, stack, _, local = map(int, found.groups())
    return {
        "registers": registers,
        "spilled_bytes": stack + local,
        "shared_bytes": compiled.metadata.shared,
    }


def compile_lookup(
    capability: int,
    min_n: int,
    max_n: int,
    k: int,
    block_size: int,
    with_drafts: bool = True,
) -> dict:
    constants = kernels.lookup_constants(min_n, max_n, k, block_size)
    if not with_drafts:
        constants["cu_num_draft_tokens_ptr"] = None
    return compile_kernel(
        kernels._ngram_lookup_kernel, capability, kernels.NUM_WARPS, constants
    )


def compile_scatter(capability: int) -> dict:
    return compile_kernel(
        _scatter_kernel, capability, SCATTER_BLOCK // 32, {"BLOCK": SCATTER_BLOCK}
    )


NGRAMS = [(2, 5), (2, 2), (5, 5), (1, 16), (16, 16)]
BLOCK_SIZES = [16, 64, 128, 528]


def table(capabilities: list[int], quick: bool = False) -> Iterator[dict]:
    ngrams = [(2, 5), (1, 16), (16, 16)] if quick else NGRAMS
    cases = [(n, 5, size) for n in ngrams for size in BLOCK_SIZES]
    cases += [((2, 5), k, 16) for k in (1, 16)]
    for sm in capabilities:
        yield {"kernel": "scatter", "sm": sm, **compile_scatter(sm)}
        for n, k, block_size in cases:
            usage = compile_lookup(sm, *n, k, block_size)
            yield {
                "kernel": "lookup",
                "sm": sm,
                "n": list(n),
                "k": k,
                "block_size": block_size,
                **usage,
            }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sm", type=int, nargs="+", default=[80, 90, 100])
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    args = parser.parse_args()
    for line in table(args.sm, args.quick):
        print(json.dumps(line), flush=True)
