"""What the device checks found, as a page of docs/figures, and the debt that it settles."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.core import toml
from ci.core.errors import Fault

_OUTCOMES = ("passed", "failed", "not run")


@dataclass(frozen=True)
class Finding:
    """One line of findings.jsonl (tests/device/findings.py writes it)."""

    part: str
    what: str
    outcome: str
    seconds: float
    values: dict[str, Any] = field(default_factory=dict)


def read_findings(path: Path) -> list[Finding]:
    """All findings of a run, in their order.

    Raises:
        Fault: it is no such file.
    """
    found = []
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Fault(f"{path} cannot be read: {error}", todo="name a findings.jsonl") from None
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        try:
            finding = toml.structure(json.loads(line), Finding, where)
        except ValueError:
            raise Fault(f"{where} is not JSON", todo="name a findings.jsonl") from None
        if finding.outcome not in _OUTCOMES:
            raise Fault(f"{where}: the outcome {finding.outcome}", todo="name a findings.jsonl")
        found.append(finding)
    if not any(finding.what == "machine" for finding in found):
        raise Fault(f"{path} does not say on which machine it ran", todo="let run.sh run `imports`")
    return found


def page(findings: list[Finding]) -> str:
    """The findings as Markdown: the machine, what came out how, and the figures."""
    machine = next(one for one in findings if one.what == "machine").values
    out = ["# Device checks", "", ", ".join(f"{name} {machine[name]}" for name in machine), ""]
    out += ["| part | passed | failed | not run | seconds |", "| --- | --- | --- | --- | --- |"]
    for part in dict.fromkeys(one.part for one in findings):
        its = [one for one in findings if one.part == part]
        counts = [str(sum(one.outcome == outcome for one in its)) for outcome in _OUTCOMES]
        whole = next((one.seconds for one in its if one.what == "the whole part"), 0.0)
        out.append(f"| {part} | {' | '.join(counts)} | {whole:.1f} |")
    bad = [one for one in findings if one.outcome != "passed"]
    if bad:
        out += ["", "## Failed, or not run", ""]
        out += [f"- {one.part}, {one.what}: {one.outcome}{_said(one.values)}" for one in bad]
    figures = [one for one in findings if one.values and one.outcome == "passed"]
    figures = [one for one in figures if one.what != "machine"]
    if figures:
        out += ["", "## Figures", ""]
        out += [f"- {one.part}, {one.what}{_said(one.values)}" for one in figures]
    return "\n".join(out) + "\n"


def _said(values: dict[str, Any]) -> str:
    def show(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    told = ", ".join(f"{name} {show(value)}" for name, value in values.items())
    return f": {told}" if told else ""


def settle_debt(text: str, findings: list[Finding]) -> tuple[str, list[str]]:
    """A text of docs/gpu-debt.md without what was shown; the claims that left it.

    A row of its tables names in backquotes the tests, or as `device:PART` the
    parts, that show it. It leaves when all of them ran on a GPU and passed.
    """
    passed: set[str] = set()
    for name in {_bare(one.what) for one in findings}:
        its = [one.outcome for one in findings if _bare(one.what) == name]
        passed |= {name} if set(its) == {"passed"} else set()
    for part in {one.part for one in findings}:
        its = [one.outcome for one in findings if one.part == part]
        passed |= {f"device:{part}"} if set(its) == {"passed"} else set()
    kept, left = [], []
    for line in text.splitlines(keepends=True):
        needs = re.findall(r"`(test_\w+|device:[\w-]+)`", line) if line.startswith("| ") else []
        if needs and passed.issuperset(needs):
            left.append(line.split("|")[1].strip())
        else:
            kept.append(line)
    return "".join(kept), left


def _bare(test: str) -> str:
    return test.partition("[")[0]
