# SPDX-License-Identifier: Apache-2.0
"""Stands in the bundle's tree for vLLM's compiled operators.

vLLM's CUDA platform imports `vllm._C` unasked, and some layers take their
operator from it when they are made. With `custom_ops=["none"]` none of them is
called: what is defined here says so if it is.
"""

import torch

_LIBRARY = torch.library.Library("_C", "FRAGMENT")
# Taken when a layer is made.
for _schema in (
    "silu_and_mul(Tensor! out, Tensor input) -> ()",
    "gelu_and_mul(Tensor! out, Tensor input) -> ()",
    "gelu_tanh_and_mul(Tensor! out, Tensor input) -> ()",
):
    _LIBRARY.define(_schema)
# Asked when modules are imported: there is none of them.
for _name in (
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_scaled_mm_supports_fp4",
    "cutlass_group_gemm_supported",
):
    _LIBRARY.define(f"{_name}(int cuda_device_capability) -> bool")
    _LIBRARY.impl(_name, lambda capability: False, "CompositeExplicitAutograd")
