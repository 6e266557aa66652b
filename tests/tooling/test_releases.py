"""Which releases an index has, and what stands for one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.core.errors import Fault
from ci.pinned.pin import Artifact
from ci.pinned.releases import find_release, releases
from tests.tooling.simpleindex import Index, serving

FILES = {
    "vllm-0.9.2.tar.gz": b"s9",
    "vllm-0.10.0.tar.gz": b"s10",
    "vllm-0.10.0-cp38-abi3-manylinux1_x86_64.whl": b"wx",
    "vllm-0.10.0-cp38-abi3-manylinux_2_31_aarch64.whl": b"wa",
    "vllm-0.11.0rc1.tar.gz": b"rc",
    "odd.tar.gz": b"?",
}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "UV_INDEX", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    with serving(Index(files=dict(FILES))) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index


def _artifact(name: str) -> Artifact:
    content = FILES[name]
    return Artifact("vllm", name, len(content), hashlib.sha256(content).hexdigest())


def test_a_release(index: Index) -> None:
    release = find_release("0.10")
    assert release.sdist == _artifact("vllm-0.10.0.tar.gz")
    assert release.wheels == {
        "cuda-x86_64": _artifact("vllm-0.10.0-cp38-abi3-manylinux1_x86_64.whl"),
        "cuda-aarch64": _artifact("vllm-0.10.0-cp38-abi3-manylinux_2_31_aarch64.whl"),
    }


def test_the_newest_is_no_preview(index: Index) -> None:
    assert releases() == ["0.9.2", "0.10.0"]


def test_no_such_release(index: Index) -> None:
    with pytest.raises(Fault, match=r"no index has a source file of vLLM 0\.12\.0") as caught:
        find_release("0.12.0")
    assert "0.9.2, 0.10.0" in str(caught.value)


def test_an_empty_index(index: Index) -> None:
    index.project = "other"
    with pytest.raises(Fault, match="no index has vLLM"):
        releases()


def test_no_network(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib3.util.Retry.get_backoff_time", lambda self: 0)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")
    with pytest.raises(Fault, match="no network: no index could be asked for vllm"):
        releases()


def test_an_index_without_hashes(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "vllm"
    folder.mkdir()
    (folder / "index.html").write_text('<a href="vllm-1.0.tar.gz">vllm-1.0.tar.gz</a>')
    monkeypatch.setenv("PIP_INDEX_URL", tmp_path.as_uri())
    with pytest.raises(Fault, match="lists no sha256"):
        find_release("1.0")
