# SPDX-License-Identifier: Apache-2.0
"""The models of this project's engine tests."""

from __future__ import annotations

from pathlib import Path

import torch

from cpurig.models.hub import ModelFolder, write_weights
from cpurig.models.text import llama_config
from cpurig.models.vocab import llama_tokenizer

TINY_LLAMA = "ngram-tests/tiny-llama"
TINY_GEMMA = "ngram-tests/tiny-gemma2"
ADAPTERS = {"ngram-tests/adapter-a": 11, "ngram-tests/adapter-b": 12}


def write_tiny_llama(home: Path) -> None:
    """Two layers; greedy output that wanders, then repeats itself."""
    folder = ModelFolder(home, TINY_LLAMA)
    config = llama_config(max_position_embeddings=4096, rope_scaling=None, dtype="float32")
    write_weights(folder, config, seed=5, gain=4.0)
    folder.write_config(config)
    folder.write_tokenizer(llama_tokenizer())
    folder.write_json("generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})


def write_tiny_gemma(home: Path) -> None:
    """Full attention and sliding window layers in turn: two KV cache groups."""
    from transformers import Gemma2Config

    folder = ModelFolder(home, TINY_GEMMA)
    config = Gemma2Config(
        architectures=["Gemma2ForCausalLM"],
        vocab_size=1024,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        query_pre_attn_scalar=32,
        hidden_act="gelu_pytorch_tanh",
        sliding_window=64,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        dtype="float32",
        tie_word_embeddings=True,
    )
    write_weights(folder, config, seed=6, gain=6.0)
    folder.write_config(config)
    folder.write_tokenizer(llama_tokenizer())
    folder.write_json("generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})


def write_adapter(home: Path, name: str, seed: int, rank: int = 8) -> None:
    """A LoRA adapter for the tiny Llama, about as strong as what it adds to.

    Much stronger ones saturate attention, and rounding decides the words.
    """
    from safetensors.torch import save_file

    folder = ModelFolder(home, name)
    generator = torch.Generator().manual_seed(seed)
    weights = {}

    def normal(*shape: int, deviation: float) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * deviation

    for layer in range(2):
        for module, width in (("q_proj", 64), ("v_proj", 32)):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{stem}.lora_A.weight"] = normal(rank, 64, deviation=0.1)
            weights[f"{stem}.lora_B.weight"] = normal(width, rank, deviation=0.5)
    save_file(weights, folder.path / "adapter_model.safetensors")
    folder.write_json(
        "adapter_config.json",
        {
            "base_model_name_or_path": TINY_LLAMA,
            "bias": "none",
            "lora_alpha": rank,
            "lora_dropout": 0.0,
            "peft_type": "LORA",
            "r": rank,
            "target_modules": ["q_proj", "v_proj"],
            "task_type": "CAUSAL_LM",
        },
    )


def write_all(home: Path) -> None:
    write_tiny_llama(home)
    write_tiny_gemma(home)
    for name, seed in ADAPTERS.items():
        write_adapter(home, name, seed)
