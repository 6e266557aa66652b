"""The text of a pull request: vLLM's own template, filled from a topic's text.

`topics/NAME.md` beside the series holds the sections that the template of its vLLM asks for.
A line `<!-- include: FILE -->` in it stands for a file beside it, so that
measured tables are kept once, as they were written by the benchmark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ci.core.errors import Fault

TEMPLATE = ".github/PULL_REQUEST_TEMPLATE.md"
_INCLUDE = re.compile(r"<!-- include: (\S+) -->")
_ASIDE = re.compile(r"<!--.*?-->", re.DOTALL)


def headings(template: str) -> tuple[str, ...]:
    """The sections that a template asks for."""
    return tuple(re.findall(r"^## (.*\S)\s*$", template, re.MULTILINE))


def sections(path: Path, wanted: Sequence[str]) -> dict[str, str]:
    """The sections of a topic's text, with its tables in place.

    Args:
        wanted: what they are called.

    Raises:
        Fault: the file or an included one is missing, or a section is
            missing, empty or unknown.
    """
    where = "/".join(path.parts[-4:])  # from the checkout's root
    if not path.is_file():
        raise Fault(
            f"{where} is missing",
            todo=f"write it, with the sections {', '.join(f'## {name}' for name in wanted)}",
        )
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("## "):
            current = found.setdefault(line[3:].strip(), [])
            continue
        current += _expanded(line, path.parent, where)
    unknown = [name for name in found if name not in wanted]
    if unknown:
        raise Fault(
            f"{where}: vLLM's template has no section {unknown[0]!r}",
            todo=f"use {', '.join(wanted)}; smaller headings (###) are free",
        )
    texts = {name: "\n".join(lines).strip() for name, lines in found.items()}
    for name in wanted:
        if not _ASIDE.sub("", texts.get(name, "")).strip():
            raise Fault(f"{where}: `## {name}` is missing or empty", todo="write it")
    return texts


def _expanded(line: str, folder: Path, where: str) -> list[str]:
    match = _INCLUDE.fullmatch(line.strip())
    if match is None:
        return [line]
    path = folder / match[1]
    if "/" in match[1] or not path.is_file():
        raise Fault(f"{where} includes {match[1]}, which is not beside it", todo="write it there")
    return path.read_text("utf-8").splitlines()


def fill(template: str, texts: dict[str, str]) -> str:
    """vLLM's template with the sections below its headings."""
    out = []
    for line in template.splitlines():
        if line.startswith("PLEASE FILL IN THE PR DESCRIPTION"):
            continue  # meant for whoever fills it in
        out.append(line)
        name = line.removeprefix("## ").strip()
        if line.startswith("## ") and name in texts:
            out += ["", texts[name]]
    return "\n".join(out) + "\n"
