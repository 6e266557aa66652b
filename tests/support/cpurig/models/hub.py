# SPDX-License-Identifier: Apache-2.0
"""Folders of a Hugging Face cache."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch


class ModelFolder:
    """The one snapshot of a model in a Hugging Face cache."""

    def __init__(self, home: Path, name: str) -> None:
        revision = hashlib.sha1(name.encode()).hexdigest()
        root = home / "hub" / f"models--{name.replace('/', '--')}"
        self.path = root / "snapshots" / revision
        self.path.mkdir(parents=True, exist_ok=True)
        (root / "refs").mkdir(exist_ok=True)
        (root / "refs" / "main").write_text(revision)

    def write_json(self, file: str, value: Any) -> None:
        (self.path / file).write_text(json.dumps(value, indent=1, sort_keys=True))

    def write_config(self, config: Any) -> None:
        config.save_pretrained(self.path)

    def write_tokenizer(self, tokenizer: Any) -> None:
        tokenizer.save_pretrained(self.path)


def write_weights(
    folder: ModelFolder,
    config: Any,
    seed: int,
    gain: float = 1.0,
    loud_tokens: list[int] | None = None,
) -> None:
    """Random weights from `seed`, in the data type that `config` names.

    The usual initialisation gives flat logits and one token over and over;
    `gain` multiplies every matrix so that greedy output varies. The output rows
    of `loud_tokens` are enlarged further, so that these tokens do come up.
    """
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Loud tied embeddings would make every token call for itself.
            tied = config.tie_word_embeddings and "embed_tokens" in name
            if gain != 1.0 and parameter.dim() >= 2 and not tied:
                parameter.mul_(gain)
            if name == "lm_head.weight" and loud_tokens:
                parameter[loud_tokens] *= 3
    model.to(getattr(torch, str(config.dtype).removeprefix("torch.")))
    model.save_pretrained(folder.path, safe_serialization=True)
