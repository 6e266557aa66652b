"""The tooling that carries the patch series: pin, compose, build, test, refresh."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).absolute().parents[1]
"""The checkout that holds the running tooling; wherever it is run from, it acts on this one."""
