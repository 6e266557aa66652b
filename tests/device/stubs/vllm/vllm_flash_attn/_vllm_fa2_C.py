# SPDX-License-Identifier: Apache-2.0
"""Stands for FlashAttention's library, which vLLM's CUDA platform imports but does not call here."""
