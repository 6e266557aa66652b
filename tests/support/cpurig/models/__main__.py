# SPDX-License-Identifier: Apache-2.0
"""Command line of the model makers."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="cpurig.models")
    parser.add_argument("what", choices=["tiny", "engine", "smollm2"])
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    args.target.mkdir(parents=True, exist_ok=True)
    if args.what == "smollm2":
        from cpurig.models import smollm2

        smollm2.write_checkpoint(args.target)
        return
    from cpurig.models import drafters, ours, text, vision

    ours.write_all(args.target)
    if args.what == "tiny":
        for module in (text, drafters, vision):
            module.write_all(args.target)


if __name__ == "__main__":
    main()
