# SPDX-License-Identifier: Apache-2.0
"""Environment and reports of the engine tests of every line; their conftest imports it.

They run against an installed vLLM, with tests/support, and a line's own support
package if it has one, installed beside it. HF_HOME holds the tiny models (`python -m cpurig.models
tiny HOME`); NGRAM_REAL_MODEL names the real checkpoint's folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

NEEDED = {
    "CUDA_VISIBLE_DEVICES": "",
    "TRITON_INTERPRET": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
# What the lines' tests import, before they do.
pytest.register_assert_rewrite(
    "episodes", "fuzz", "line", "matrix", "real_model", "reasoning", "sampling", "tight_budget"
)
# Before anything imports vLLM or Triton.
for _name, _value in NEEDED.items():
    os.environ.setdefault(_name, _value)


class Figures:
    """Tables that the tests fill, printed at the end of the run."""

    def __init__(self) -> None:
        self.tables: dict[str, list[dict[str, object]]] = {}

    def add(self, table: str, **row: object) -> None:
        self.tables.setdefault(table, []).append(row)

    def lines(self) -> Iterator[str]:
        for name, rows in self.tables.items():
            yield f"## {name}"
            columns = list(dict.fromkeys(key for row in rows for key in row))
            yield "| " + " | ".join(columns) + " |"
            yield "|" + "---|" * len(columns)
            for row in rows:
                yield "| " + " | ".join(str(row.get(c, "")) for c in columns) + " |"
            yield ""


_figures = Figures()


@pytest.fixture(scope="session")
def figures() -> Figures:
    return _figures


def pytest_terminal_summary(terminalreporter) -> None:
    """Print the tables; NGRAM_FIGURES names a folder that gets them as files too."""
    for line in _figures.lines():
        terminalreporter.write_line(line)
    folder = os.environ.get("NGRAM_FIGURES")
    if folder and _figures.tables:
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        (path / f"engine-{os.getpid()}.json").write_text(json.dumps(_figures.tables, indent=1))
        (path / f"engine-{os.getpid()}.md").write_text("\n".join(_figures.lines()))
