# SPDX-License-Identifier: Apache-2.0
"""Text models under the names that upstream's tests ask for.

What tests assert on (context length, vocabulary of GPT-2, rope parameters)
carries the published values; everything else is shrunk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cpurig.models.hub import ModelFolder, write_weights
from cpurig.models.vocab import gpt2_tokenizer, ids_of_the, llama_tokenizer, qwen_tokenizer

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}
LONG, PLAIN = 131072, {"max_position_embeddings": 8192, "rope_scaling": None}

LLAMAS: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-3.1-8B-Instruct": {},
    "meta-llama/Meta-Llama-3.1-8B-Instruct": {},
    "meta-llama/Meta-Llama-3-8B-Instruct": PLAIN,
    "meta-llama/Meta-Llama-3-8B": PLAIN,
    "meta-llama/Llama-3.2-1B": {},
    # EAGLE-3 taps layers 2, n//2 and n-3: they must be three different ones.
    "meta-llama/Llama-3.2-1B-Instruct": {"num_hidden_layers": 8},
    "hmellor/tiny-random-LlamaForCausalLM": PLAIN,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": {
        "num_hidden_layers": 6,
        "max_position_embeddings": 2048,
        "rope_scaling": None,
    },
}
QWENS = {
    "Qwen/Qwen3-0.6B": ("qwen3", 40960),
    "Qwen/Qwen3-1.7B": ("qwen3", 40960),
    "Qwen/Qwen3-8B": ("qwen3", 40960),
    "Qwen/Qwen1.5-7B": ("qwen2", 32768),
    "Qwen/Qwen2.5-1.5B-Instruct": ("qwen2", 32768),
    "Qwen/Qwen2-1.5B-Instruct": ("qwen2", 32768),
}


def llama_config(hidden: int = 64, **changes: Any) -> Any:
    from transformers import LlamaConfig

    values = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 1024,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": hidden // 2,
        "max_position_embeddings": LONG,
        "rope_scaling": LLAMA3_ROPE,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    return LlamaConfig(**{**values, **changes})


def qwen_config(kind: str, max_position_embeddings: int) -> Any:
    from transformers import Qwen2Config, Qwen3Config

    cls, extra = (Qwen2Config, {}) if kind == "qwen2" else (Qwen3Config, {"head_dim": 32})
    return cls(
        architectures=[f"{kind.capitalize()}ForCausalLM"],
        vocab_size=1024,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=max_position_embeddings,
        bos_token_id=0,
        eos_token_id=2,
        dtype="bfloat16",
        tie_word_embeddings=False,
        **extra,
    )


def write_opt(home: Path) -> None:
    from transformers import OPTConfig

    folder = ModelFolder(home, "facebook/opt-125m")
    config = OPTConfig(
        architectures=["OPTForCausalLM"],
        vocab_size=50272,
        hidden_size=64,
        word_embed_proj_dim=64,
        ffn_dim=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=2048,
        bos_token_id=2,
        eos_token_id=2,
        pad_token_id=1,
        dtype="float16",
    )
    write_weights(folder, config, seed=1)
    folder.write_config(config)
    folder.write_tokenizer(gpt2_tokenizer())


def write_gpt2(home: Path) -> None:
    from transformers import GPT2Config

    config = GPT2Config(
        architectures=["GPT2LMHeadModel"],
        vocab_size=50257,
        n_embd=64,
        n_layer=2,
        n_head=2,
        n_positions=1024,
        bos_token_id=50256,
        eos_token_id=50256,
        dtype="float32",
    )
    for name in ("gpt2", "openai-community/gpt2", "distilbert/distilgpt2"):
        folder = ModelFolder(home, name)
        write_weights(folder, config, seed=2)
        folder.write_config(config)
        folder.write_tokenizer(gpt2_tokenizer())


def write_llamas(home: Path) -> None:
    tokenizer = llama_tokenizer()
    for name, changes in LLAMAS.items():
        folder = ModelFolder(home, name)
        config = llama_config(**changes)
        write_weights(folder, config, 3, gain=4.0, loud_tokens=ids_of_the(tokenizer))
        folder.write_config(config)
        folder.write_tokenizer(tokenizer)
        folder.write_json("generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})


def write_qwens(home: Path) -> None:
    tokenizer = qwen_tokenizer()
    for name, (kind, length) in QWENS.items():
        folder = ModelFolder(home, name)
        config = qwen_config(kind, length)
        write_weights(folder, config, 4, gain=4.0, loud_tokens=ids_of_the(tokenizer))
        folder.write_config(config)
        folder.write_tokenizer(tokenizer)
        folder.write_json("generation_config.json", {"bos_token_id": 0, "eos_token_id": 2})


def write_mimo(home: Path) -> None:
    """Its configuration is remote code: a class of one attribute, ours."""
    folder = ModelFolder(home, "XiaomiMiMo/MiMo-7B-Base")
    (folder.path / "configuration_mimo.py").write_text(
        "from transformers.models.qwen2.configuration_qwen2 import Qwen2Config\n\n\n"
        "class MiMoConfig(Qwen2Config):\n    model_type = 'mimo'\n"
    )
    config = qwen_config("qwen2", 32768).to_dict()
    config.update(
        architectures=["MiMoForCausalLM"],
        model_type="mimo",
        num_nextn_predict_layers=1,
        dtype="bfloat16",
        auto_map={"AutoConfig": "configuration_mimo.MiMoConfig"},
    )
    folder.write_json("config.json", config)
    folder.write_tokenizer(qwen_tokenizer())


def write_hybrid(home: Path) -> None:
    """Attention and Mamba layers; a configuration without weights."""
    from transformers import GraniteMoeHybridConfig

    folder = ModelFolder(home, "ibm-granite/granite-4.0-tiny-preview")
    kinds = ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)]
    config = GraniteMoeHybridConfig(
        architectures=["GraniteMoeHybridForCausalLM"],
        vocab_size=1024,
        hidden_size=1536,
        intermediate_size=512,
        num_hidden_layers=40,
        num_attention_heads=12,
        num_key_value_heads=4,
        num_local_experts=62,
        num_experts_per_tok=6,
        shared_intermediate_size=1024,
        layer_types=kinds,
        mamba_n_heads=48,
        mamba_d_head=64,
        mamba_n_groups=1,
        mamba_d_state=128,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_chunk_size=256,
        max_position_embeddings=LONG,
        dtype="bfloat16",
    )
    folder.write_config(config)
    folder.write_tokenizer(llama_tokenizer())


def write_all(home: Path) -> None:
    write_opt(home)
    write_gpt2(home)
    write_llamas(home)
    write_qwens(home)
    write_mimo(home)
    write_hybrid(home)
