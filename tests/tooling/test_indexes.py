"""pip's and uv's settings lead to the indexes that those tools would use."""

from __future__ import annotations

from pathlib import Path

import pytest
from pypi_simple import PYPI_SIMPLE_ENDPOINT

from ci.core.errors import Fault
from ci.pinned.indexes import indexes, without_secrets

ALONE = {"PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}


def test_nothing_set() -> None:
    found = indexes(ALONE)
    assert found.urls == (PYPI_SIMPLE_ENDPOINT,)
    assert (found.folders, found.bundle, found.proxy) == ((), None, None)


@pytest.mark.parametrize(
    ("env", "first"),
    [
        ({"PIP_INDEX_URL": "http://p/"}, "http://p/"),
        ({"PIP_INDEX_URL": "http://p/", "UV_INDEX_URL": "http://u/"}, "http://u/"),
        ({"UV_INDEX_URL": "http://u/", "UV_DEFAULT_INDEX": "http://d/"}, "http://d/"),
        ({"UV_DEFAULT_INDEX": "mine=http://d/?a=b"}, "http://d/?a=b"),
        ({"UV_DEFAULT_INDEX": "http://d/?a=b"}, "http://d/?a=b"),
    ],
)
def test_the_default_index(env: dict[str, str], first: str) -> None:
    assert indexes({**ALONE, **env}).urls == (first,)


def test_further_indexes_and_folders() -> None:
    found = indexes(
        {
            **ALONE,
            "UV_INDEX": "a=http://1/ http://2/",
            "UV_EXTRA_INDEX_URL": "http://3/",
            "PIP_EXTRA_INDEX_URL": "http://4/ http://1/",
            "PIP_FIND_LINKS": "/wheels file:///more%20wheels http://page/",
            "UV_FIND_LINKS": "/uv,/uv2",
        }
    )
    assert found.urls == (PYPI_SIMPLE_ENDPOINT, "http://1/", "http://2/", "http://3/", "http://4/")
    assert [str(f) for f in found.folders] == ["/uv", "/uv2", "/wheels", "/more wheels"]


def test_no_index() -> None:
    assert indexes({**ALONE, "PIP_NO_INDEX": "1"}).urls == ()
    assert indexes({**ALONE, "UV_NO_INDEX": "true"}).urls == ()
    assert indexes({**ALONE, "PIP_NO_INDEX": "0"}).urls == (PYPI_SIMPLE_ENDPOINT,)


def test_pip_s_files(tmp_path: Path) -> None:
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text(
        "[global]\nindex-url = http://user/\nextra-index-url =\n    http://a/\n    http://b/%2F\n"
        "trusted-host = h1 h2\ntimeout = 7\nproxy = http://proxy\n[install]\ncert = /ca.pem\n"
    )
    (tmp_path / "later.conf").write_text("[global]\nindex-url = http://later/\n")
    env = {"HOME": str(tmp_path), "UV_NO_CONFIG": "1"}
    found = indexes(env)
    assert found.urls[:3] == ("http://user/", "http://a/", "http://b/%2F")
    assert found.trusted == {"h1", "h2"}
    assert (found.timeout, found.proxy, found.bundle) == (7.0, "http://proxy", "/ca.pem")
    assert indexes({**env, "PIP_CONFIG_FILE": str(tmp_path / "later.conf")}).urls[0] == (
        "http://later/"
    )
    assert indexes({**env, "PIP_INDEX_URL": "http://env/"}).urls[0] == "http://env/"
    assert indexes({**env, "PIP_CERT": "/other"}).bundle == "/other"


def test_uv_s_files(tmp_path: Path) -> None:
    path = tmp_path / "uv.toml"
    env = {"PIP_CONFIG_FILE": "/dev/null", "UV_CONFIG_FILE": str(path)}
    path.write_text(
        '[[index]]\nurl = "http://x/"\n[[index]]\nname = "m"\nurl = "http://d/"\ndefault = true\n'
    )
    assert indexes(env).urls == ("http://d/", "http://x/")
    path.write_text('index-url = "http://i/"\nextra-index-url = ["http://e/"]\n')
    assert indexes(env).urls == ("http://i/", "http://e/")
    path.write_text('[pip]\nindex-url = "http://i/"\n')
    assert indexes(env).urls == ("http://i/",)


def test_broken_files_are_faults(tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_text("index-url = no section\n")
    with pytest.raises(Fault, match=r"pip's configuration .*broken cannot be read"):
        indexes({"UV_NO_CONFIG": "1", "PIP_CONFIG_FILE": str(path)})
    with pytest.raises(Fault, match="not valid TOML"):
        indexes({"PIP_CONFIG_FILE": "/dev/null", "UV_CONFIG_FILE": str(path)})


@pytest.mark.parametrize(
    ("env", "bundle"),
    [
        ({"SSL_CERT_FILE": "/s"}, "/s"),
        ({"SSL_CERT_FILE": "/s", "CURL_CA_BUNDLE": "/c"}, "/c"),
        ({"CURL_CA_BUNDLE": "/c", "REQUESTS_CA_BUNDLE": "/r"}, "/r"),
        ({"REQUESTS_CA_BUNDLE": "/r", "PIP_CERT": "/p"}, "/p"),
    ],
)
def test_certificates(env: dict[str, str], bundle: str) -> None:
    assert indexes({**ALONE, **env}).bundle == bundle


def test_secrets_are_not_shown() -> None:
    assert without_secrets("https://me:pw%40@host:8/simple/") == "https://host:8/simple/"
    assert without_secrets("https://host/simple/") == "https://host/simple/"
