"""Building a wheel of a small project that builds as vLLM does, and verifying it."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ci.core.content import REGULAR, Content
from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.env.venvs import Environment
from ci.git.repo import Git
from ci.pinned.pin import Artifact, Pin
from ci.pinned.variant import Variant, machine
from ci.wheel import archive as wheelfile
from ci.wheel import build as wheel
from ci.wheel import identity as identities
from ci.wheel import sbom, verify
from ci.wheel.composed import ComposedSeries
from ci.wheel.identity import PatchIdentity, SeriesIdentity
from tests.tooling.projects import LINE, write_tree

# vLLM's setup.py, as far as the tooling leans on it.
SETUP = b"""\
import os, zipfile
from setuptools import setup
libraries = []
with zipfile.ZipFile(os.environ["VLLM_PRECOMPILED_WHEEL_LOCATION"]) as wheel:
    for name in wheel.namelist():
        if name.endswith(".so") and name != "vllm/_forgotten.so":
            open(name, "wb").write(wheel.read(name))
            libraries.append(os.path.basename(name))
assert os.environ["VLLM_USE_PRECOMPILED"] == "1"
version = os.environ["VLLM_VERSION_OVERRIDE"]
open("vllm/_version.py", "w").write("__version__ = %r" % version)
setup(name="vllm", version=version, packages=["vllm"],
      install_requires=["regex", "torch==2.0+cpu; platform_machine == 'x86_64'"],
      extras_require={"more": ["numpy"]},
      package_data={"vllm": [*libraries, "*.jinja"]}, has_ext_modules=lambda: True)
"""
PYPROJECT = b"""\
[project]
name = "vllm"
dynamic = ["version", "dependencies", "optional-dependencies"]
readme = "README.md"
license-files = ["LICENSE"]
scripts = { vllm = "vllm:main" }
entry-points."vllm.general_plugins" = { one = "vllm.one:load" }
"""
FILES = {
    "setup.py": SETUP,
    "pyproject.toml": PYPROJECT,
    "README.md": b"# A\n\nRead.\n",
    "LICENSE": b"Do.\n",
    "requirements/cpu.txt": b"-r common.txt\ntorch==2.0+cpu; platform_machine == 'x86_64'\n",
    "requirements/common.txt": b"# what all need\nregex # plain\n",
    "vllm/__init__.py": b"from ._version import __version__\n",
    "vllm/template.jinja": b"{{ x }}\r\n",
    "tests/test_a.py": b"",
}


class Project:
    """A store with one composed series, and the precompiled wheel that it stands on."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root, LINE)
        self.git = Git(self.layout.store)
        self.git.init()
        self.files = dict(FILES)
        self._known: dict[object, tuple[str, str]] = {}
        self.base_tree, _ = self._commit(FILES)
        self.pinned = self._pinned({"vllm/_C.so": b"library", "vllm/__init__.py": b"released"})

    def _pinned(self, members: dict[str, bytes]) -> Path:
        path = self.layout.root / "vllm_x-1.0-cp38-abi3-manylinux_2_28_x86_64.whl"
        own = "vllm_x-1.0.dist-info/RECORD"
        record = {name: wheelfile.Entry.of(content) for name, content in members.items()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
            archive.writestr(own, wheelfile.render_record(record, own))
        return path

    def _commit(self, files: dict[str, bytes]) -> tuple[str, str]:
        key = tuple(files.items())
        if key not in self._known:
            content = {path: Content(REGULAR, data) for path, data in files.items()}
            self.git.attempt("update-ref", "-d", "refs/heads/made")
            commit, tree = write_tree(self.git, "refs/heads/made", content)
            self._known[key] = (tree, commit)
        return self._known[key]

    @property
    def source(self) -> ComposedSeries:
        tree, commit = self._commit(self.files)
        artifact = Artifact("vllm-x", self.pinned.name, 1, "ab" * 32)
        sdist = Artifact("vllm", "vllm-1.0.tar.gz", 1, "cd" * 32)
        name = f"cpu-{machine()}"
        pin = Pin(
            "1.0",
            "https://example.invalid/v.git",
            "v1.0",
            "e" * 40,
            self.base_tree,
            sdist,
            (),
            {name: artifact},
        )
        patch = PatchIdentity(
            "0001-x.patch",
            "12" * 32,
            {"vllm/new.py": "34" * 32},
            "[Core] X",
            "x",
            "https://example.invalid/pull/1",
        )
        identity = SeriesIdentity(pin.version, pin.commit, pin.base_tree, (patch,))
        return ComposedSeries(self.git, commit, tree, pin, identity)

    def build(self, environment: Callable[[], Environment] | None = None) -> Path:
        return wheel.build(
            self.source,
            Variant.CPU,
            self.layout.dist,
            self.layout.build / "wheel",
            lambda _: self.pinned,
            environment or _here,
        )


def _here() -> Environment:
    return Environment(Path(sys.executable).parent.parent)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture(scope="module")
def built_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One whose wheel is there already, to be looked at only."""
    project = Project(tmp_path_factory.mktemp("built"))
    project.build()
    return project


def test_a_wheel_of_the_composed_tree(project: Project) -> None:
    built = project.build()
    version = project.source.identity.version(Variant.CPU)
    assert built.name == f"vllm-{version}-cp38-abi3-manylinux_2_28_x86_64.whl"
    assert not [p for p in built.parent.iterdir() if p.suffix == ".part"]
    with zipfile.ZipFile(built) as archive:
        info = wheelfile.dist_info(archive)
        assert archive.read("vllm/__init__.py") == FILES["vllm/__init__.py"]
        assert archive.read("vllm/template.jinja") == FILES["vllm/template.jinja"]
        assert archive.read("vllm/_C.so") == b"library"
        assert version in archive.read("vllm/_version.py").decode()
        assert b"Tag: cp38-abi3-manylinux_2_28_x86_64\n" in archive.read(f"{info}/WHEEL")
        carried = json.loads(archive.read(f"{info}/{identities.FILE}"))
        bill = json.loads(archive.read(f"{info}/{sbom.FILE}"))
    assert carried["series"] == project.source.identity.id
    assert carried["tree"] == project.source.tree
    refs = {part["bom-ref"]: part for part in bill["components"]}
    assert refs["precompiled-wheel"]["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    patch = refs["patch:0001-x.patch"]
    assert patch["hashes"][0]["content"] == "12" * 32
    assert patch["externalReferences"] == [{"type": "vcs", "url": "https://example.invalid/pull/1"}]
    assert patch["components"][0]["name"] == "vllm/new.py"
    ancestor = bill["metadata"]["component"]["pedigree"]["ancestors"][0]
    assert ancestor["properties"][0]["value"] == project.source.pin.commit


def test_two_builds_give_the_same_bytes(project: Project, tmp_path: Path) -> None:
    first = project.build().read_bytes()
    other = Project(tmp_path / "elsewhere")
    assert other.build().read_bytes() == first


def test_nothing_is_built_twice(project: Project) -> None:
    def never() -> Environment:
        raise AssertionError("built again")

    built = project.build()
    assert project.build(never) == built
    with pytest.raises(AssertionError, match="built again"):
        project.files["vllm/__init__.py"] += b"# changed\n"
        project.build(never)


def test_a_damaged_or_copied_wheel(project: Project) -> None:
    built = project.build()
    content = built.read_bytes()
    copied = built.with_name("copy")
    shutil.copyfile(built, copied)
    copied.replace(built)
    assert project.build(lambda: pytest.fail("the same bytes")) == built
    built.write_bytes(content[:-1] + b"\xff")
    assert project.build().read_bytes() == content


@pytest.mark.parametrize(
    "path",
    ["csrc/a.txt", "vllm/k.cu", "CMakeLists.txt", "rust/Cargo.lock", "tools/build_rust.py"],
)
def test_compiled_sources_are_refused(project: Project, path: str) -> None:
    project.files[path] = b"changed"
    with pytest.raises(Fault, match="1 compiled source file") as caught:
        project.build()
    assert caught.value.details == (path,)
    assert not project.layout.dist.exists()


def test_a_library_that_setup_py_leaves_out(project: Project) -> None:
    project.pinned = project._pinned({"vllm/_C.so": b"x", "vllm/_forgotten.so": b"y"})
    with pytest.raises(Fault) as caught:
        project.build()
    assert caught.value.details == (
        "vllm/_forgotten.so: missing (a library of the precompiled wheel)",
    )
    assert not list(project.layout.dist.glob("*.whl"))


def test_a_file_that_setup_py_leaves_out(project: Project) -> None:
    project.files["vllm/data.txt"] = b"x"
    with pytest.raises(Fault) as caught:
        project.build()
    assert caught.value.details == ("vllm/data.txt: missing",)


def test_setup_py_fails(project: Project) -> None:
    project.files["setup.py"] = b"raise SystemExit('no such luck')\n"
    with pytest.raises(Fault, match=r"setup\.py for cpu failed") as caught:
        project.build()
    assert any("no such luck" in line for line in caught.value.details)
    assert not project.layout.dist.exists()


def _tampered(built: Path, name: str, content: bytes | None, *, record: bool = False) -> Path:
    """A copy of a wheel with one member changed, added or (None) left out.

    `name` may say `INFO/` for its dist-info; `record` writes RECORD anew.
    """
    target = built.with_name("tampered.whl")
    with zipfile.ZipFile(built) as old, zipfile.ZipFile(target, "w") as new:
        info = wheelfile.dist_info(old)
        name = name.replace("INFO/", f"{info}/")
        own = f"{info}/RECORD"
        rows = wheelfile.parse_record(old.read(own))
        for member in old.namelist():
            if member not in (name, own):
                new.writestr(member, old.read(member))
        if content is not None:
            new.writestr(name, content)
            if record:
                rows[name] = wheelfile.Entry.of(content)
        new.writestr(own, wheelfile.render_record(rows, own))
    return target


def _member(project: Project, name: str) -> bytes:
    with zipfile.ZipFile(project.build()) as archive:
        return archive.read(name.replace("INFO/", f"{wheelfile.dist_info(archive)}/"))


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("vllm/__init__.py", b"evil", "vllm/__init__.py: differs from the composed tree"),
        ("vllm/__init__.py", None, "vllm/__init__.py: missing"),
        ("vllm/more.py", b"", "vllm/more.py: in neither the tree nor RECORD"),
        ("vllm/_C.so", b"evil", "vllm/_C.so: differs from RECORD"),
        ("vllm/_version.py", b"evil", "vllm/_version.py: differs from RECORD"),
    ],
)
def test_verify_names_what_is_wrong(
    built_project: Project, name: str, content: bytes | None, fault: str
) -> None:
    project = built_project
    wheel_file = _tampered(project.build(), name, content)
    report = verify.check(verify.WheelFiles(wheel_file), project.git, lambda _: project.pinned)
    assert report.faults == (fault,)
    with pytest.raises(Fault, match=f"is not series {project.source.identity.id}"):
        report.raise_for_faults()


def _verified(project: Project, wheel_file: Path) -> verify.Report:
    return verify.check(
        verify.WheelFiles(wheel_file), project.git, lambda _: project.pinned, project.source
    )


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("INFO/sboms/ngram-series.cdx.json", b"ab" * 32, b"cc" * 32),
        ("INFO/ngram_series.json", b'"series": "', b'"more": 1, "series": "'),
    ],
)
def test_record_does_not_answer_for_what_follows_from_the_identity(
    built_project: Project, name: str, old: bytes, new: bytes
) -> None:
    project = built_project
    content = _member(project, name)
    assert old in content
    assert not _verified(project, project.build()).faults
    edited = _tampered(project.build(), name, content.replace(old, new), record=True)
    [found] = _verified(project, edited).faults
    assert "is not what this series makes" in found


@pytest.mark.parametrize("name", ["INFO/evil.py", "vllm/x.dist-info/evil.py", "evil.pth"])
def test_a_file_that_no_build_makes(built_project: Project, name: str) -> None:
    edited = _tampered(built_project.build(), name, b"", record=True)
    [found] = _verified(built_project, edited).faults
    assert "in neither the composed tree nor the precompiled wheel" in found


def test_a_member_that_is_there_twice(built_project: Project) -> None:
    target = _tampered(built_project.build(), "none", None)
    with zipfile.ZipFile(target, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("vllm/__init__.py", FILES["vllm/__init__.py"])
    assert _verified(built_project, target).faults == ("vllm/__init__.py: is there twice",)


def test_a_released_file_that_the_series_deletes(project: Project) -> None:
    project.files["vllm/old.py"] = b"old"
    project.base_tree, _ = project._commit(project.files)
    del project.files["vllm/old.py"]
    project.pinned = project._pinned({"vllm/_C.so": b"library", "vllm/old.py": b"old"})
    edited = _tampered(project.build(), "vllm/old.py", b"old", record=True)
    assert _verified(project, edited).faults == ("vllm/old.py: the series deletes it",)


def _relabelled(project: Project, **changes: object) -> Path:
    table = {**json.loads(_member(project, "INFO/ngram_series.json")), **changes}
    content = json.dumps(table, indent=1).encode() + b"\n"
    return _tampered(project.build(), "INFO/ngram_series.json", content, record=True)


def test_a_wheel_of_another_tree_that_names_this_series(built_project: Project) -> None:
    project = built_project
    pristine = _relabelled(project, tree=project._commit({"vllm/__init__.py": b"other"})[0])
    with pytest.raises(Fault, match=r"calls itself series .* but names tree"):
        _verified(project, pristine)
    artifact = {"project": "vllm-x", "file": "evil-1-py3-none-any.whl", "size": 1}
    foreign = _relabelled(project, precompiled={**artifact, "sha256": "ee" * 32})
    with pytest.raises(Fault, match="but names libraries of evil-1") as caught:
        _verified(project, foreign)
    assert "not the pin's" in caught.value.what
    outside = _relabelled(project, precompiled={**artifact, "file": "../x", "sha256": "ee" * 32})
    with pytest.raises(Fault, match="identity in it is damaged"):
        _verified(project, outside)


def test_a_wheel_of_another_series_says_what_was_not_checked(built_project: Project) -> None:
    project = built_project
    wheel_file = project.build()
    here = replace(project.source, identity=replace(project.source.identity, patches=()))
    report = verify.check(
        verify.WheelFiles(wheel_file), project.git, lambda _: project.pinned, here
    )
    assert report.faults == ()
    assert not report.ours
    told = "\n".join(report.lines())
    assert (
        f"not checked: that these patches make the tree it names, which is\n  {project.source.tree}"
        in told
    )
    assert _verified(project, wheel_file).ours
    assert "not checked" not in "\n".join(_verified(project, wheel_file).lines())


def test_verify_an_installation(built_project: Project, tmp_path: Path) -> None:
    project = built_project
    site = tmp_path / "site"
    with zipfile.ZipFile(project.build()) as archive:
        archive.extractall(site)
    (site / "vllm" / "__pycache__").mkdir()
    (site / "vllm" / "__pycache__" / "a.pyc").write_bytes(b"")
    report = verify.check(verify.InstalledFiles(site), project.git, lambda _: project.pinned)
    assert report.faults == ()
    assert report.origins[verify.Origin.TREE] == 2
    assert report.origins[verify.Origin.PRECOMPILED] == 1
    (site / "vllm" / "__init__.py").write_bytes(b"edited")
    report = verify.check(verify.InstalledFiles(site), project.git, lambda _: project.pinned)
    assert report.faults == ("vllm/__init__.py: differs from the composed tree",)


def test_an_environment_of_several_pythons(built_project: Project, tmp_path: Path) -> None:
    sites = [tmp_path / "lib" / python / "site-packages" for python in ("python3.10", "python3.11")]
    sites[0].mkdir(parents=True)
    with zipfile.ZipFile(built_project.build()) as archive:
        archive.extractall(sites[1])
        assert verify.open_files(tmp_path).name == str(sites[1])
        archive.extractall(sites[0])
    with pytest.raises(Fault, match="2 installations of vllm in ") as caught:
        verify.open_files(tmp_path)
    assert caught.value.todo == "name the folder that you mean"
    assert len(caught.value.details) == 2


def test_a_wheel_of_someone_elses(built_project: Project, tmp_path: Path) -> None:
    project = built_project
    with pytest.raises(Fault, match="carries no series identity"):
        verify.check(verify.WheelFiles(project.pinned), project.git, lambda _: project.pinned)
    wheel_file = project.build()
    other = Git(tmp_path / "empty.git")
    other.init()
    with pytest.raises(Fault, match="whose tree is not in the store"):
        verify.check(verify.WheelFiles(wheel_file), other, lambda _: project.pinned)
