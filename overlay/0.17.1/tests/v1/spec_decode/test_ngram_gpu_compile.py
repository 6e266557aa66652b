# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What the compiled lookup takes of a GPU, without a GPU."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skip_global_cleanup


def _has_compiler() -> bool:
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return False
    tools = Path(spec.origin).parent / "backends" / "nvidia" / "bin"
    return (tools / "ptxas").exists() and (tools / "cuobjdump").exists()


@pytest.mark.skipif(not _has_compiler(), reason="needs Triton's ptxas and cuobjdump")
@pytest.mark.parametrize("sm", [80, 90, 100])
def test_registers_and_spills(sm, tmp_path):
    # Triton decides at import whether it interprets: use a process of its own.
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    module = "tests.v1.spec_decode.ngram_gpu_compile"
    output = subprocess.run(
        [sys.executable, "-m", module, "--quick", "--sm", str(sm)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    lookups = [row for row in rows if row["kernel"] == "lookup"]
    assert len(lookups) == 14
    for row in rows:
        # Shared memory never limits how many programs run at once: 32 of them,
        # as many as a multiprocessor takes, fit several times over.
        assert row["spilled_bytes"] == 0 and row["shared_bytes"] <= 1024, row
        if row["kernel"] == "scatter" or row["n"][0] >= 2 and row["n"][1] <= 5:
            assert row["registers"] <= 80, row
        assert row["registers"] <= 128, row
