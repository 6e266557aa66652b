# SPDX-License-Identifier: Apache-2.0
"""Models with images: published image geometry, small towers, no weights."""

from __future__ import annotations

from pathlib import Path

from cpurig.models.hub import ModelFolder
from cpurig.models.text import llama_config, qwen_config
from cpurig.models.vocab import CHAT_TEMPLATE, llama_tokenizer, qwen_tokenizer


def write_llava(home: Path) -> None:
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlavaConfig,
        LlavaProcessor,
    )

    folder, tokenizer = ModelFolder(home, "llava-hf/llava-1.5-7b-hf"), llama_tokenizer()
    vision = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=336,
        patch_size=14,
        projection_dim=64,
        vocab_size=1024,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=llama_config(max_position_embeddings=4096, rope_scaling=None),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=576,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        architectures=["LlavaForConditionalGeneration"],
        dtype="float16",
    )
    size = {"height": 336, "width": 336}
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessor(size={"shortest_edge": 336}, crop_size=size),
        tokenizer=tokenizer,
        patch_size=14,
        num_additional_image_tokens=1,
        vision_feature_select_strategy="default",
        image_token="<image>",
        chat_template=CHAT_TEMPLATE,
    )
    folder.write_config(config)
    processor.save_pretrained(folder.path)


def write_qwen_vl(home: Path) -> None:
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    folder, tokenizer = ModelFolder(home, "Qwen/Qwen2.5-VL-3B-Instruct"), qwen_tokenizer()
    text = qwen_config("qwen2", 128000).to_dict()
    for key in ("architectures", "model_type"):
        del text[key]
    text["rope_scaling"] = {"type": "mrope", "mrope_section": [4, 6, 6]}
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [1],
        "tokens_per_second": 2,
    }
    marks = {
        "image_token_id": "image_pad",
        "video_token_id": "video_pad",
        "vision_start_token_id": "vision_start",
        "vision_end_token_id": "vision_end",
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        architectures=["Qwen2_5_VLForConditionalGeneration"],
        dtype="bfloat16",
        **{k: tokenizer.convert_tokens_to_ids(f"<|{v}|>") for k, v in marks.items()},
    )
    processor = Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(min_pixels=3136, max_pixels=12845056),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    )
    folder.write_config(config)
    processor.save_pretrained(folder.path)


def write_all(home: Path) -> None:
    write_llava(home)
    write_qwen_vl(home)
