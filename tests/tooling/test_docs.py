"""What the documents name is there, and what is there is named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from ci.core.layout import Layout
from ci.series.model import load_series
from tests.tooling.test_rooms import ROOMS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def test_readme_names_every_session() -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text("utf-8"))
    sessions = {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list
    }
    assert sessions == set(re.findall(r"^\| `nox -s (\w+)", README, re.M))


def test_readme_names_every_topic() -> None:
    table = README.split("| topics | what |")[1].split("\n\n")[0]
    first_cells = "".join(re.findall(r"^\| (`.*?) \|", table, re.M))
    series = load_series(Layout(ROOT, "0.17.1"))
    assert re.findall(r"`([^`]+)`", first_cells) == [topic.name for topic in series.topics]


def test_architecture_names_every_module_and_no_other() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    named = set(re.findall(r"`(ci/[\w/]+\.py)`", text))
    there = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "ci").rglob("*.py")
        if path.name != "__init__.py"
    }
    assert named == there


def test_the_picture_of_the_rooms_shows_all_of_them() -> None:
    drawn = re.findall(r'middle">(\w+)</text>', (ROOT / "docs" / "rooms.svg").read_text("utf-8"))
    assert sorted(drawn) == sorted(ROOMS)


def test_links_between_documents() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text("utf-8")):
            assert (path.parent / link).exists(), f"{path.name}: {link}"
