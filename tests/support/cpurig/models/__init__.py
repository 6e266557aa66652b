# SPDX-License-Identifier: Apache-2.0
"""Small offline models, made from nothing (except SmolLM2, from a package's GGUF).

    python -m cpurig.models tiny HOME      # a Hugging Face cache: set HF_HOME=HOME
    python -m cpurig.models smollm2 DIR    # a checkpoint folder

Weights are seeded, so two runs give the same models. No network is used.
"""
