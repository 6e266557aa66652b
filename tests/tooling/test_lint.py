"""vLLM's checks on the changed files, as its pre-commit configuration has them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from ci.core.content import REGULAR, Content
from ci.core.errors import Fault
from ci.env.venvs import Environment
from ci.git.repo import Git
from ci.pinned.pin import Artifact, Pin
from ci.testing import vllm_checks as lint
from ci.verbs import lint as verb
from ci.wheel.composed import ComposedSeries
from ci.wheel.identity import SeriesIdentity
from tests.tooling.projects import Project, write_tree

CONFIG = """\
repos:
- repo: https://github.com/astral-sh/ruff-pre-commit
  rev: v0.14.0
- repo: https://github.com/crate-ci/typos
  rev: v1.38.1
- repo: local
  hooks:
  - additional_dependencies: [mypy==1.11.1, regex, types-torch]
"""


def _source(root: Path, base: dict[str, str], now: dict[str, str]) -> ComposedSeries:
    git = Git(root / "store.git")
    git.init()
    trees = []
    for number, files in enumerate((base, now)):
        tree = {path: Content(REGULAR, text.encode()) for path, text in files.items()}
        trees.append(write_tree(git, f"refs/heads/tree{number}", tree)[1])
    sdist = Artifact("vllm", "vllm-1.tar.gz", 1, "0" * 64)
    pin = Pin("1", "https://example.invalid", "v1", "0" * 40, trees[0], sdist, (), {})
    return ComposedSeries(git, "0" * 40, trees[1], pin, SeriesIdentity("1", "0" * 40, trees[0], ()))


def test_versions_are_vllms_own(tmp_path: Path) -> None:
    source = _source(tmp_path, {}, {".pre-commit-config.yaml": CONFIG})
    versions = lint.read_versions(source.git, source.tree)
    assert (versions.ruff, versions.typos) == ("0.14.0", "1.38.1")
    assert versions.mypy == ("mypy==1.11.1", "regex", "types-torch")


def test_versions_of_a_later_release(tmp_path: Path) -> None:
    later = CONFIG.replace("[mypy==1.11.1,", '["mypy[faster-cache]==1.19.1",')
    other = '  - additional_dependencies: ["pytest[x]", regex]\n'
    later = later.replace("  - additional", other + "  - additional")
    source = _source(tmp_path, {}, {".pre-commit-config.yaml": later})
    versions = lint.read_versions(source.git, source.tree)
    assert versions.mypy == ("mypy[faster-cache]==1.19.1", "regex", "types-torch")


def test_versions_of_a_release_with_frozen_revisions(tmp_path: Path) -> None:
    later = CONFIG.replace("rev: v", f"rev: {'0a' * 20}  # frozen: v")
    source = _source(tmp_path, {}, {".pre-commit-config.yaml": later})
    versions = lint.read_versions(source.git, source.tree)
    assert (versions.ruff, versions.typos) == ("0.14.0", "1.38.1")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (('0 "3.10"', '1 "3.10"', '1 "3.11"'), ("1", "3.10")),
        (('"3.11"',), ("3.11",)),
    ],
)
def test_mypy_is_run_as_vllm_does(
    tmp_path: Path, entries: tuple[str, ...], words: tuple[str, ...]
) -> None:
    text = "".join(f"    entry: python tools/pre_commit/mypy.py {one}\n" for one in entries)
    (tmp_path / ".pre-commit-config.yaml").write_text(text)
    environment = Environment(Path(sys.executable).parent.parent)
    checks = lint.vllm_checks(environment, tmp_path, ("vllm/a.py",))
    args = next(check.args for check in checks if check.name == "vLLM: mypy")
    assert args[1:] == ("tools/pre_commit/mypy.py", *words, "vllm/a.py")


def test_a_configuration_of_another_form(tmp_path: Path) -> None:
    source = _source(tmp_path, {}, {".pre-commit-config.yaml": "repos: []\n"})
    with pytest.raises(Fault, match="does not name ruff, typos and mypy"):
        lint.read_versions(source.git, source.tree)


def test_added_and_changed_files_are_checked(tmp_path: Path) -> None:
    base = {"vllm/a.py": "1", "vllm/b.py": "1", "vllm/c.py": "1"}
    now = {"vllm/a.py": "2", "vllm/b.py": "1", "vllm/d.py": "1"}
    assert lint.changed_files(_source(tmp_path, base, now)) == ("vllm/a.py", "vllm/d.py")


def test_which_checks_see_which_files(tmp_path: Path) -> None:
    environment = Environment(Path(sys.executable).parent.parent)
    checks = lint.vllm_checks(environment, tmp_path, ("docs/x.md", "vllm/a.py"))
    seen = {check.name: check.args for check in checks}
    assert seen["vLLM: typos"][-2:] == ("docs/x.md", "vllm/a.py")
    assert "docs/x.md" not in seen["vLLM: ruff check"]
    assert seen["vLLM: check_init_lazy_imports"][-1] == "vllm/__init__.py"
    assert "vLLM: mypy" in seen
    only_text = lint.vllm_checks(environment, tmp_path, ("docs/x.md",))
    assert [check.name for check in only_text] == ["vLLM: typos"]
    with pytest.raises(Fault, match="has a space in its name"):
        lint.vllm_checks(environment, tmp_path, ("docs/x y.md",))


def test_scripts_read_sources_as_utf_8_in_every_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.py").write_bytes('name = "é"\n'.encode())
    for name, value in (("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")):
        monkeypatch.setenv(name, value)
    read = (sys.executable, "-c", "print(open('x.py').read())")
    assert lint.run_checks([lint.Check("read", read, tmp_path)]) == []


def test_the_form_of_the_series_needs_no_vllm(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def composed(layout: object) -> None:
        raise AssertionError("the series was composed")

    monkeypatch.setattr(verb, "composed_series", composed)
    form = argparse.Namespace(part="form")
    assert verb.run(project.layout, form) == 0
    patch = next(project.layout.patches.glob("0001-*.patch"))
    patch.write_bytes(patch.read_bytes().replace(b"Subject: ", b"Subject:  ", 1))
    with pytest.raises(Fault, match=r"1 check\(s\) failed: series"):
        verb.run(project.layout, form)
