# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE tokenizers trained on a few lines."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GPT2TokenizerFast, PreTrainedTokenizerFast, Qwen2TokenizerFast

LINES = [
    "The quick brown fox jumps over the lazy dog. Hello, my name is",
    "the capital of France is Paris. In one word, the capital of France is",
    "The following numbers of the sequence 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 are:",
    "Tell me about the number 1: 2: 3: please repeat the word test 10 times.",
    '{"type": "object", "properties": {"name": {"type": "string"}, "age": 1}}',
    '{"a": "b"} {"a"} {"skills": ["x", "y"], "work_history": []} true false null',
    "give no other output than the word at least ten times in a row, in "
    "lowercase with spaces between each word and without quotes.",
    "def f(x):\n    return x + 1\n\nfor i in range(10):\n    print(f(i))\n",
    "a b c d e a b c d e 1 1 1 1 1 1 of and to in is it that for was on are",
]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _trained(specials: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(specials),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(LINES * 4, trainer)
    return tokenizer


def _with_last_token(tokenizer: Tokenizer, token: str, index: int) -> Tokenizer:
    """Fill the vocabulary up to `index`, where `token` gets its published place."""
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    vocab.update({f"unused{i}": i for i in range(len(vocab), index)})
    vocab[token] = index
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    state["added_tokens"].append({"id": index, "content": token, "special": True, **flags})
    return Tokenizer.from_str(json.dumps(state))


def _wrapped(cls: type, tokenizer: Tokenizer, **tokens: str | None) -> Any:
    return cls(
        tokenizer_object=tokenizer,
        chat_template=CHAT_TEMPLATE,
        model_max_length=1 << 17,
        clean_up_tokenization_spaces=False,
        **tokens,
    )


@functools.cache
def gpt2_tokenizer() -> Any:
    end = "<|endoftext|>"
    tokenizer = _with_last_token(_trained([]), end, 50256)
    return _wrapped(GPT2TokenizerFast, tokenizer, bos_token=end, eos_token=end, pad_token=end)


@functools.cache
def llama_tokenizer() -> Any:
    begin = "<|begin_of_text|>"
    roles = ["<|user|>", "<|assistant|>", "<|system|>"]
    tokenizer = _trained([begin, "<|eot_id|>", "<pad>", "<image>", *roles])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A",
        pair=f"{begin} $A {begin} $B",
        special_tokens=[(begin, tokenizer.token_to_id(begin))],
    )
    return _wrapped(
        PreTrainedTokenizerFast,
        tokenizer,
        bos_token=begin,
        eos_token="<|eot_id|>",
        pad_token="<pad>",
    )


@functools.cache
def qwen_tokenizer() -> Any:
    names = "endoftext im_start im_end vision_start vision_end image_pad video_pad vision_pad"
    tokenizer = _trained([f"<|{name}|>" for name in names.split()])
    return _wrapped(
        Qwen2TokenizerFast,
        tokenizer,
        bos_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )


def ids_of_the(tokenizer: Any) -> list[int]:
    """Upstream's async tests forbid the word "the": it must come up."""
    encode = functools.partial(tokenizer.encode, add_special_tokens=False)
    return [encode(word)[-1] for word in ("the", " the")]
