"""The fixed point under every setting and environment that a user may have.

Each row is composed from nothing, edited, refreshed and composed again; the
commit ids and the bytes of the series must be those of a plain environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ci.core.content import REGULAR, Content
from tests.tooling.projects import Project, text


@dataclass(frozen=True)
class Row:
    """What a user's machine is like.

    Attributes:
        config: settings, for the user's own file and the work tree's.
        env: variables.
        files: files below the user's home.
        arrange: anything else, done to the project before each step.
    """

    config: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    arrange: Callable[[Project], None] | None = None


CRLF = "* text eol=crlf\n*.py ident filter=gone export-ignore -diff working-tree-encoding=UTF-16\n"


def _attributes_in_work_tree(project: Project) -> None:
    if project.work.exists():
        (project.work / ".git/info/attributes").write_text(CRLF)


def _attributes_in_store(project: Project) -> None:
    if project.layout.store.exists():
        (project.layout.store / "info/attributes").write_text(CRLF)


def _replaced(project: Project) -> None:
    """The user has git show something else in the place of a file and a commit."""
    if project.work.exists() and not (project.work / ".git/refs/replace").exists():
        for old, new in (("HEAD:vllm/a.py", "HEAD:setup.py"), ("HEAD", "HEAD~1")):
            project.git("replace", old, new)


def _hooks(project: Project) -> None:
    for git_dir in (project.layout.store, project.work / ".git"):
        if git_dir.exists():
            (git_dir / "hooks").mkdir(exist_ok=True)
            for name in ("reference-transaction", "post-checkout", "post-index-change"):
                hook = git_dir / "hooks" / name
                hook.write_text("#!/bin/sh\nexit 1\n")
                hook.chmod(0o755)


def _another_owner(project: Project) -> None:
    if os.geteuid() == 0:
        for path in (project.root, *project.root.rglob("*")):
            os.lchown(path, 12345, 12345)


def _sparse(project: Project) -> None:
    if project.work.exists():
        project.git("config", "core.sparseCheckout", "true")
        (project.work / ".git/info/sparse-checkout").write_text("/docs/\n")


SETTINGS = {
    "diff.noprefix": "true",
    "diff.mnemonicPrefix": "true",
    "diff.algorithm": "patience",
    "diff.context": "1",
    "diff.interHunkContext": "20",
    "diff.suppressBlankEmpty": "true",
    "diff.orderFile": "order",
    "diff.renames": "copies",
    "diff.external": "/bin/false",
    "core.quotePath": "false",
    "core.autocrlf": "true",
    "core.eol": "crlf",
    "core.attributesFile": "attributes",
    "core.hooksPath": "hooks",
    "core.excludesFile": "excludes",
    "core.fileMode": "false",
    "core.symlinks": "false",
    "core.abbrev": "4",
    "core.logAllRefUpdates": "always",
    "commit.gpgsign": "true",
    "apply.whitespace": "fix",
    "i18n.commitEncoding": "ISO-8859-1",
    "i18n.logOutputEncoding": "UTF-16",
    "log.showSignature": "true",
    "init.defaultObjectFormat": "sha256",
    "fastimport.unpackLimit": "1",
}
FORMAT = {
    "format.attach": "x",
    "format.coverLetter": "true",
    "format.useAutoBase": "true",
    "format.headers": "X-Odd: yes",
    "format.to": "a@example.invalid",
    "format.cc": "b@example.invalid",
    "format.thread": "deep",
    "format.encodeEmailHeaders": "true",
    "format.signature": "me",
    "format.pretty": "oneline",
    "format.noprefix": "true",
}
# No row of their own: nothing that reads them is run.
OTHERS = {
    "diff.srcPrefix": "x/",
    "diff.indentHeuristic": "false",
    "diff.relative": "true",
    "diff.ignoreSubmodules": "all",
    "color.ui": "always",
    "core.safecrlf": "true",
    "core.whitespace": "cr-at-eol,tab-in-indent",
    "core.ignoreCase": "true",
    "core.compression": "9",
    "core.commentChar": "[",
    "core.fsmonitor": "/bin/false",
    "commit.cleanup": "verbatim",
    "log.decorate": "full",
    "apply.ignoreWhitespace": "change",
    "merge.renames": "false",
    "user.useConfigOnly": "true",
    "transfer.fsckObjects": "true",
    "index.version": "4",
    "feature.manyFiles": "true",
}

ENVIRONMENTS = {
    "GIT_DIR": {"GIT_DIR": "/nowhere"},
    "GIT_WORK_TREE": {"GIT_WORK_TREE": "/nowhere"},
    "GIT_INDEX_FILE": {"GIT_INDEX_FILE": "/nowhere/index"},
    "GIT_OBJECT_DIRECTORY": {"GIT_OBJECT_DIRECTORY": "/nowhere"},
    "GIT_NAMESPACE": {"GIT_NAMESPACE": "odd"},
    "GIT_CONFIG_COUNT": {
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "diff.noprefix", "GIT_CONFIG_VALUE_0": "true"
    },
    "GIT_CONFIG_PARAMETERS": {"GIT_CONFIG_PARAMETERS": "'diff.context'='0'"},
    "GIT_DIFF_OPTS": {"GIT_DIFF_OPTS": "-u0"},
    "GIT_EXTERNAL_DIFF": {"GIT_EXTERNAL_DIFF": "/bin/false"},
    "GIT_DEFAULT_HASH": {"GIT_DEFAULT_HASH": "sha256"},
    "GIT_ATTR_SOURCE": {"GIT_ATTR_SOURCE": "HEAD"},
    "GIT_ICASE_PATHSPECS": {"GIT_ICASE_PATHSPECS": "1"},
    "GIT_EXEC_PATH": {"GIT_EXEC_PATH": "/nowhere"},
    "GIT_TRACE": {"GIT_TRACE": "1", "GIT_TEMPLATE_DIR": "/nowhere", "GIT_COMMON_DIR": "/nowhere"},
    "GIT_AUTHOR": {
        "GIT_AUTHOR_NAME": "Ü", "GIT_AUTHOR_EMAIL": "", "GIT_AUTHOR_DATE": "@1 -1100"
    },
    "GIT_COMMITTER": {
        "GIT_COMMITTER_NAME": "Ü", "GIT_COMMITTER_EMAIL": "", "GIT_COMMITTER_DATE": "@1 -1100"
    },
    "no identity": dict.fromkeys(
        (f"GIT_{role}_{part}" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")), ""
    ),
    "TZ": {"TZ": "Asia/Kathmandu"},
    "LC_ALL": {"LC_ALL": "C", "LANG": "C", "LANGUAGE": "de"},
}  # fmt: skip

HOOK = "#!/bin/sh\nexit 1\n"
ROWS: dict[str, Row] = {
    "plain": Row(),
    **{name: Row(config={name: value}) for name, value in SETTINGS.items()},
    **{name: Row(env=env) for name, env in ENVIRONMENTS.items()},
    "format.*": Row(config=FORMAT),
    "everything at once": Row(
        SETTINGS | FORMAT | OTHERS,
        {k: v for env in ENVIRONMENTS.values() for k, v in env.items()},
    ),
    "config/git/attributes": Row(files={"config/git/attributes": CRLF}),
    ".config/git/attributes": Row(files={".config/git/attributes": CRLF}),
    "config/git/ignore": Row(files={"config/git/ignore": "*.py\n"}),
    ".gitconfig": Row(files={".gitconfig": "[diff]\n\tnoprefix = true\n"}),
    "attributes in the work tree": Row(arrange=_attributes_in_work_tree),
    "attributes in the store": Row(arrange=_attributes_in_store),
    "refs/replace": Row(arrange=_replaced),
    "hooks that refuse": Row(arrange=_hooks),
    "another owner": Row(arrange=_another_owner),
    "sparse checkout": Row(arrange=_sparse),
}


WHOLE = "everything at once"


def _is_in_the_whole(name: str) -> bool:
    """Whether a row is there to tell which of the whole one's settings it was."""
    row, whole = ROWS[name], ROWS[WHOLE]
    parts = row.config.items() <= whole.config.items() and row.env.items() <= whole.env.items()
    return parts and not (row.files or row.arrange) and name not in (WHOLE, "plain")


@pytest.mark.parametrize("name", ["GIT_DIR", "diff.noprefix", "format.*", "LC_ALL"])
def test_the_whole_row_stands_for_others(name: str) -> None:
    assert _is_in_the_whole(name)


@pytest.mark.parametrize("name", [WHOLE, "plain", "GIT_AUTHOR", ".gitconfig", "refs/replace"])
def test_the_whole_row_does_not_stand_for(name: str) -> None:
    """Another row's value takes the place of some; others are no settings."""
    assert not _is_in_the_whole(name)


@dataclass(frozen=True)
class Expected:
    """What a plain environment gives."""

    head: str
    refreshed: dict[str, Content]
    refreshed_head: str


def _walk(project: Project, row: Row) -> Iterator[object]:
    """Compose from nothing, edit, refresh, compose again; what came of each step."""

    def arrange() -> None:
        if row.arrange:
            row.arrange(project)

    arrange()
    yield project.apply().head
    arrange()
    assert project.refresh().written == ()
    project.replace("vllm/a.py", "from vllm import new", "from vllm import newer  ")
    project.write("win.txt", Content(REGULAR, b"r1\r\nR2!\r\nr3\r\n"))
    project.write("vllm/new.py", Content(REGULAR, b"\xe9 = 1\r\n$Id$\n"))
    project.write("vllm/fresh.py", text("fresh"))
    project.write("tests/été 1.py", text("fresh"))
    project.refresh("--to", "Say-six")
    yield project.series()
    arrange()
    yield project.apply("--relock").head


def _bare(sample: Project, root: Path) -> Project:
    """The sample's series in a checkout where nothing was composed yet."""
    project = sample.copy(root)
    shutil.rmtree(project.layout.store)
    shutil.rmtree(project.work)
    return project


@pytest.fixture(scope="module")
def expected(_sample: Project, settled: None, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    project = _bare(_sample, tmp_path_factory.mktemp("plain") / "project")
    head, refreshed, again = _walk(project, Row())
    assert isinstance(refreshed, dict)
    return Expected(str(head), refreshed, str(again))


def _settle(row: Row, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    home.mkdir()
    (home / "order").write_text("win.txt\nvllm/*\n")
    (home / "attributes").write_text(CRLF)
    (home / "excludes").write_text("*\n")
    (home / "hooks").mkdir()
    for name in ("pre-commit", "reference-transaction", "post-index-change"):
        (home / "hooks" / name).write_text(HOOK)
        (home / "hooks" / name).chmod(0o755)
    for name, content in row.files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(content)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    config = home / ("gitconfig" if row.config else "none")
    for name, value in row.config.items():
        here = home / value
        words = [
            "git",
            "config",
            "--file",
            str(config),
            name,
            str(here) if here.exists() else value,
        ]
        subprocess.run(words, check=True)
    if row.config:
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    else:
        monkeypatch.delenv("GIT_CONFIG_GLOBAL")
    monkeypatch.delenv("GIT_CONFIG_NOSYSTEM")
    for name, value in row.env.items():
        monkeypatch.setenv(name, value)
    time.tzset()


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if _is_in_the_whole(n) else ()) for n in ROWS],
)
def test_the_fixed_point_holds(
    name: str,
    _sample: Project,
    expected: Expected,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = ROWS[name]
    project = _bare(_sample, tmp_path / "project")
    _settle(row, monkeypatch, tmp_path / "home")
    head, refreshed, again = _walk(project, row)
    assert head == expected.head
    assert refreshed == expected.refreshed
    assert again == expected.refreshed_head


@pytest.mark.parametrize("mask", [0o000, 0o027, 0o077])
def test_under_a_umask(mask: int, _sample: Project, expected: Expected, tmp_path: Path) -> None:
    project = _bare(_sample, tmp_path / "project")
    before = os.umask(mask)
    try:
        head, refreshed, again = _walk(project, Row())
    finally:
        os.umask(before)
    assert (head, refreshed, again) == (
        expected.head, expected.refreshed, expected.refreshed_head
    )  # fmt: skip


@pytest.mark.parametrize(
    "name", ["with spaces", "été 漢", 'quo"te\\', "colon:here", "-dash", "$(x)"]
)
def test_in_a_folder_with_an_odd_name(
    name: str, _sample: Project, expected: Expected, tmp_path: Path
) -> None:
    project = _bare(_sample, tmp_path / name / "project")
    head, refreshed, again = _walk(project, Row())
    assert (head, refreshed, again) == (
        expected.head, expected.refreshed, expected.refreshed_head
    )  # fmt: skip


def test_in_a_process_that_knows_ascii_only(
    _sample: Project, expected: Expected, tmp_path: Path
) -> None:
    """No locale, and no help from Python: paths and output are still right."""
    project = _bare(_sample, tmp_path / "été").with_tooling()
    env = {
        "PATH": os.environ["PATH"],
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "ci", *words], cwd=project.root, env=env, capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    assert expected.head[:12] in run("apply")
    project.write("tests/été 1.py", text("fresh"))
    said = run("refresh", "--to", "Say-six")
    assert "wrote overlay/L/tests/\\xe9t\\xe9 1.py" in said
    assert project.series()["overlay/L/tests/été 1.py"] == text("fresh")
    assert "nothing to do" in run("apply")
