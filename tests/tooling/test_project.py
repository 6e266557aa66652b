"""The tooling in a project of another name, on another topic."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ci.core import project as projects
from ci.core.errors import Fault
from tests.tooling.projects import UPSTREAM, Project, edit, sdist_of, text

ROOT = Path(__file__).resolve().parents[2]
TABLE = """\
[tool.series]
name = "vLLM quiet logs"
email = "quiet@example.org"
label = "quiet"
"""


def _ci(project: Project, *words: str) -> str:
    """A verb of the project's own copy of the tooling."""
    env = {**os.environ, "PYTHONPATH": str(project.root), "PIP_NO_INDEX": "1", "UV_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=project.root, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def other(tmp_path: Path) -> Project:
    """A project that took ci/ as it is, with a table of its own and no patch yet."""
    project = Project.make(tmp_path / "quiet", UPSTREAM)
    shutil.copytree(ROOT / "ci", project.root / "ci", ignore=shutil.ignore_patterns("__pycache__"))
    (project.root / "pyproject.toml").write_text(TABLE)
    return project


def test_a_project_of_another_name(other: Project, tmp_path: Path) -> None:
    _ci(other, "-m", "ci", "apply")
    other.replace("vllm/a.py", "a line 5\n", "a line five\n")
    other.write("vllm/quiet.py", text("quiet = True"))
    said = _ci(other, "-m", "ci", "refresh", "--new", "[Core] Log less")
    assert "overlay/vllm/quiet.py" in said
    patch = (other.layout.patches / "0001-Core-Log-less.patch").read_text()
    assert "From: vLLM quiet logs <quiet@example.org>\n" in patch
    assert other.git("log", "-1", "--format=%an|%ce") == "vLLM quiet logs|quiet@example.org"

    check = "from ci.core.layout import Layout; from ci.series.check import check_series\n"
    check += "from pathlib import Path; print(check_series(Layout(Path.cwd())))"
    assert _ci(other, "-c", check) == "[]\n"

    told = json.loads(_ci(other, "-m", "ci", "status", "--json"))
    assert "ngram" not in json.dumps(told)
    version = "from ci.core.layout import Layout; from ci.pinned.pin import load_pin\n"
    version += "from ci.pinned.variant import Variant; from ci.series.model import read_files\n"
    version += "from ci.wheel import identity, sbom; from pathlib import Path\n"
    version += (
        "at = Layout(Path.cwd())\none = identity.identify(load_pin(at.pin), read_files(at))\n"
    )
    version += "print(one.version(Variant.CPU), identity.FILE, sbom.FILE)"
    made = _ci(other, "-c", version)
    assert re.fullmatch(
        r"0\.0\.1\+quiet\.s[0-9a-f]{10}\.cpu quiet_series\.json sboms/quiet-series\.cdx\.json\n",
        made,
    )

    moved = {**UPSTREAM, "vllm/a.py": edit(UPSTREAM["vllm/a.py"], ("a line 1\n", "0\na line 1\n"))}
    moved["vllm/_version.py"] = text("commit_id = 'gabcdef123'")
    (tmp_path / "vllm-0.0.2.tar.gz").write_bytes(sdist_of(moved))
    said = _ci(other, "-m", "ci", "roll", "0.0.2", "--source", str(tmp_path))
    assert "series on vLLM 0.0.1, tried on 0.0.2" in said
    assert "0001-Core-Log-less" in said and "ngram" not in said


def test_the_tooling_knows_no_project_s_name() -> None:
    own = projects.project()
    words = {own.name, own.email, own.label, "n-gram"}
    naming = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in (*(ROOT / "ci").rglob("*"), ROOT / "noxfile.py")
        if path.is_file() and "__pycache__" not in path.parts
        for word in words
        if word.lower() in path.read_text("utf-8").lower()
    ]
    assert naming == []


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", r"\[tool.series\] is missing"),
        (TABLE.replace("label", "lable"), "unknown key|missing required field"),
        (TABLE.replace('"quiet"', '"Quiet-1"'), "`Quiet-1` cannot stand in a version"),
        (TABLE.replace("quiet@example.org", "nobody"), "`nobody` is no address"),
        (TABLE.replace("vLLM quiet logs", "a <b>"), "`a <b>` cannot stand in a commit"),
    ],
)
def test_a_table_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, message: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(table)
    monkeypatch.setattr(projects, "_FILE", tmp_path / "pyproject.toml")
    projects.project.cache_clear()
    with pytest.raises(Fault, match=message):
        projects.project()
    projects.project.cache_clear()
