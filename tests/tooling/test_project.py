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
from ci.core.cache import ensure_built
from ci.core.errors import Fault
from ci.env.venvs import Recipe
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


CHECKED = {
    **UPSTREAM,
    ".pre-commit-config.yaml": text(
        "- repo: https://upstream.invalid/ruff-pre-commit",
        "  rev: v0.1.0",
        "- repo: https://upstream.invalid/typos",
        "  rev: v1.2.0",
        "  additional_dependencies: [mypy==1.1.0]",
    ),
}
WHEEL = """\
from pathlib import Path
from ci.core.layout import Layout
from ci.pinned.variant import Variant
from ci.wheel import identity, sbom
from ci.wheel.composed import composed_series
layout = Layout(Path.cwd(), "L")
series = composed_series(layout, layout.store)
wheel = identity.WheelIdentity(
    series.identity, Variant.CPU, series.tree, series.pin.wheels["cpu-x86_64"]
)
print(wheel.version, identity.FILE, sbom.FILE)
print(wheel.as_json().decode(), sbom.render(wheel, series.pin, series.timestamp).decode())
"""


def _names() -> set[str]:
    """What this project is called, which no other one's things may hold."""
    own = projects.project()
    return {own.name.lower(), own.email.lower(), own.label, "n-gram"}


@pytest.fixture
def other(tmp_path: Path) -> Project:
    """A project that took ci/ as it is, with a table of its own and no patch yet."""
    project = Project.make(tmp_path / "quiet", CHECKED)
    shutil.copytree(ROOT / "ci", project.root / "ci", ignore=shutil.ignore_patterns("__pycache__"))
    (project.root / "pyproject.toml").write_text(TABLE)
    return project


def _with_checks(project: Project) -> None:
    """vLLM's checks, each of which is a program here that is content with everything."""
    recipe = Recipe("lint", ("ruff==0.1.0", "typos==1.2.0", "mypy==1.1.0"))
    folder = project.layout.build / "envs" / recipe.name

    def make(part: Path) -> None:
        (part / "bin").mkdir()
        for name in ("python", "ruff", "typos"):
            (part / "bin" / name).write_text("#!/bin/sh\n")
            (part / "bin" / name).chmod(0o755)

    ensure_built(folder, recipe.key(), make)


def test_a_project_of_another_name(other: Project, tmp_path: Path) -> None:
    said = [_ci(other, "-m", "ci", "apply")]
    other.replace("vllm/a.py", "a line 5\n", "a line five\n")
    other.write("vllm/quiet.py", text("quiet = True"))
    said.append(_ci(other, "-m", "ci", "refresh", "--new", "[Core] Log less"))
    assert "overlay/L/vllm/quiet.py" in said[-1]
    patch = (other.layout.patches / "0001-Core-Log-less.patch").read_text()
    assert "From: vLLM quiet logs <quiet@example.org>\n" in patch
    said.append(other.git("log", "-1", "--format=fuller", "--stat", "series"))
    assert said[-1].count("vLLM quiet logs <quiet@example.org>") == 2

    _with_checks(other)
    said.append(_ci(other, "-m", "ci", "lint", "--part", "series"))
    assert "series: ok" in said[-1] and "all checks passed" in said[-1]

    said.append(_ci(other, "-c", WHEEL))
    assert re.match(
        r"0\.0\.1\+quiet\.s[0-9a-f]{10}\.cpu quiet_series\.json sboms/quiet-series\.cdx\.json\n",
        said[-1],
    )
    assert '"quiet-series:topic"' in said[-1]

    moved = {**CHECKED, "vllm/a.py": edit(UPSTREAM["vllm/a.py"], ("a line 1\n", "0\na line 1\n"))}
    moved["vllm/_version.py"] = text("commit_id = 'gabcdef123'")
    (tmp_path / "vllm-0.0.2.tar.gz").write_bytes(sdist_of(moved))
    said.append(_ci(other, "-m", "ci", "roll", "0.0.2", "--source", str(tmp_path)))
    assert "series on vLLM 0.0.1, tried on 0.0.2" in said[-1]
    assert "0001-Core-Log-less" in said[-1]

    said.append(_ci(other, "-m", "ci", "status", "--json"))
    assert json.loads(said[-1])
    said.append(_ci(other, "-m", "ci", "status"))
    said += [content.data.decode() for content in other.series().values()]
    assert [name for name in _names() if name in "".join(said).lower()] == []


def test_the_tooling_knows_no_project_s_name() -> None:
    naming = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in (*(ROOT / "ci").rglob("*"), ROOT / "noxfile.py")
        if path.is_file() and "__pycache__" not in path.parts
        for word in _names()
        if word in path.read_text("utf-8").lower()
    ]
    assert naming == []


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", r"\[tool.series\] is missing"),
        (TABLE.replace("label", "lable"), "unknown key|missing required field"),
        (TABLE.replace('"quiet"', '"Quiet-1"'), "`Quiet-1` cannot stand in a version"),
        (TABLE.replace("quiet@example.org", "nobody"), "`nobody` is not an email address"),
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
