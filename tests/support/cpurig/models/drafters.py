# SPDX-License-Identifier: Apache-2.0
"""Draft models that upstream's speculation tests ask for."""

from __future__ import annotations

from pathlib import Path

import torch

from cpurig.models.hub import ModelFolder
from cpurig.models.text import llama_config
from cpurig.models.vocab import llama_tokenizer

SHORT = {"num_hidden_layers": 1, "max_position_embeddings": 2048, "rope_scaling": None}
HIDDEN, VOCAB = 64, 1024


def write_configs(home: Path) -> None:
    """Drafters of which a configuration is enough."""
    for name in ("yuhuili/EAGLE-LLaMA3.1-Instruct-8B", "yuhuili/EAGLE-LLaMA3-Instruct-8B"):
        ModelFolder(home, name).write_config(llama_config(**SHORT))
    config = llama_config(**SHORT, draft_vocab_size=512)
    config.architectures = ["LlamaForCausalLMEagle3"]
    ModelFolder(home, "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B").write_config(config)
    folder = ModelFolder(home, "amd/PARD-Llama-3.2-1B")
    folder.write_config(llama_config(num_hidden_layers=1, pard_token=3))
    folder.write_tokenizer(llama_tokenizer())


def write_eagle3(home: Path, name: str, verifier: str) -> None:
    """An EAGLE-3 head in the speculators format, with weights."""
    from safetensors.torch import save_file

    folder = ModelFolder(home, name)
    layer = llama_config(num_hidden_layers=1, max_position_embeddings=8192, rope_scaling=None)
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": 3,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    folder.write_json(
        "config.json",
        {
            "architectures": ["Eagle3Speculator"],
            "dtype": "bfloat16",
            "speculators_model_type": "eagle3",
            "speculators_version": "0.1.0",
            "draft_vocab_size": VOCAB,
            "target_hidden_size": HIDDEN,
            "norm_before_residual": True,
            "transformer_layer_config": layer.to_dict(),
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [proposal],
                "verifier": {
                    "name_or_path": verifier,
                    "architectures": ["LlamaForCausalLM"],
                },
            },
        },
    )
    save_file(_eagle3_weights(), folder.path / "model.safetensors")
    folder.write_tokenizer(llama_tokenizer())


def _eagle3_weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "embed_tokens.weight": (VOCAB, HIDDEN),
        "lm_head.weight": (VOCAB, HIDDEN),
        "layers.0.self_attn.q_proj.weight": (HIDDEN, 2 * HIDDEN),
        "layers.0.self_attn.k_proj.weight": (HIDDEN // 2, 2 * HIDDEN),
        "layers.0.self_attn.v_proj.weight": (HIDDEN // 2, 2 * HIDDEN),
        "layers.0.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        "layers.0.mlp.gate_proj.weight": (2 * HIDDEN, HIDDEN),
        "layers.0.mlp.up_proj.weight": (2 * HIDDEN, HIDDEN),
        "layers.0.mlp.down_proj.weight": (HIDDEN, 2 * HIDDEN),
    }
    weights = {
        name: (torch.randn(*shape, generator=generator) * 0.05).to(torch.bfloat16)
        for name, shape in shapes.items()
    }
    for norm in (
        "norm",
        "layers.0.input_layernorm",
        "layers.0.hidden_norm",
        "layers.0.post_attention_layernorm",
    ):
        weights[f"{norm}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
    weights["d2t"] = torch.zeros(VOCAB, dtype=torch.long)
    weights["t2d"] = torch.ones(VOCAB, dtype=torch.bool)
    return weights


def write_all(home: Path) -> None:
    write_configs(home)
    verifiers = {
        "nm-testing/Llama3_2_1B_speculator.eagle3": "meta-llama/Llama-3.2-1B-Instruct",
        "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3": ("meta-llama/Llama-3.1-8B-Instruct"),
    }
    for name, verifier in verifiers.items():
        write_eagle3(home, name, verifier)
