"""Which package indexes the user's pip and uv settings name, and how to reach them.

A checkout should find its files wherever `pip download` or `uv pip install`
would, so the same settings are read: first uv's environment variables, then
pip's, then uv's configuration files, then pip's. What an index serves is
checked against the pin's sha256, so it does not matter which one answers.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ci.core import toml
from ci.core.errors import Fault
from ci.core.offline import is_true, offline


@dataclass(frozen=True)
class Indexes:
    """Where files are looked for, and how.

    Attributes:
        urls: simple indexes, the default one first; none with `no-index`.
        folders: local folders of files (`find-links`), looked at first.
        bundle: a file of certificates to trust instead of the usual ones.
        trusted: hosts whose certificates are not checked (`trusted-host`).
        proxy: for all requests; None leaves it to the usual variables.
        timeout: seconds without an answer after which a request is given up.
        offline: nothing is to be asked over a network.
    """

    urls: tuple[str, ...]
    folders: tuple[Path, ...]
    bundle: str | None
    trusted: frozenset[str]
    proxy: str | None
    timeout: float
    offline: bool = False


def indexes(env: Mapping[str, str] = os.environ) -> Indexes:
    """What the environment `env`, and the configuration it leads to, ask for."""
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    pip_file, uv_file = _pip_file(env), _uv_file(env)
    uv_pip = uv_file.get("pip", {})
    listed = [entry for entry in uv_file.get("index", []) if isinstance(entry, dict)]

    def pip(key: str) -> str:
        return env.get("PIP_" + key.upper().replace("-", "_")) or pip_file.get(key, "")

    default = (
        _url(env.get("UV_DEFAULT_INDEX", ""))
        or env.get("UV_INDEX_URL")
        or env.get("PIP_INDEX_URL")
        or next((entry["url"] for entry in listed if entry.get("default")), None)
        or uv_file.get("index-url")
        or uv_pip.get("index-url")
        or pip_file.get("index-url")
        or PYPI_SIMPLE_ENDPOINT
    )
    more = [
        *map(_url, env.get("UV_INDEX", "").split()),
        *env.get("UV_EXTRA_INDEX_URL", "").split(),
        *(entry["url"] for entry in listed if not entry.get("default")),
        *(uv_file.get("extra-index-url") or uv_pip.get("extra-index-url") or []),
        *pip("extra-index-url").split(),
    ]
    links = env.get("UV_FIND_LINKS", "").replace(",", " ").split() + pip("find-links").split()
    no_index = is_true(env.get("UV_NO_INDEX")) or is_true(pip("no-index"))
    variables = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
    timeout = pip("timeout") or env.get("PIP_DEFAULT_TIMEOUT", "")
    return Indexes(
        urls=() if no_index else tuple(dict.fromkeys(map(str, [default, *more]))),
        folders=tuple(_folder(link) for link in links if urlsplit(link).scheme in ("", "file")),
        bundle=pip("cert") or next((env[name] for name in variables if env.get(name)), None),
        trusted=frozenset(pip("trusted-host").split()),
        proxy=pip("proxy") or None,
        timeout=max(1.0, float(timeout)) if timeout.replace(".", "", 1).isdecimal() else 30.0,
        offline=offline(env),
    )


def without_secrets(url: str) -> str:
    """The URL without the user and password that may be in it, for messages."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _url(index: str) -> str:
    """The URL of uv's `name=url`."""
    name, equals, url = index.partition("=")
    return url if equals and ":" not in name else index


def _folder(link: str) -> Path:
    """A local `find-links`; pages of links on the web are left to the indexes."""
    return Path(unquote(urlsplit(link).path)).expanduser()


def _pip_file(env: Mapping[str, str]) -> dict[str, str]:
    """What pip's configuration files say, the later ones winning, as pip reads them."""
    chosen = env.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return {}
    home = Path(env.get("HOME", "/nonexistent"))
    user = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    paths = [
        *(Path(folder) / "pip/pip.conf" for folder in _machine_folders(env)),
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        user / "pip/pip.conf",
        Path(sys.prefix) / "pip.conf",
        *([Path(chosen)] if chosen else []),
    ]
    found: dict[str, str] = {}
    for path in filter(_is_readable, paths):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text(encoding="utf-8"))
        except (configparser.Error, UnicodeDecodeError) as error:
            raise Fault(
                f"pip's configuration {path} cannot be read", todo=str(error).splitlines()[0]
            ) from None
        for section in ("global", "download", "install"):
            if parser.has_section(section):
                found.update(parser.items(section))
    return found


def _machine_folders(env: Mapping[str, str]) -> list[str]:
    return env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")


def _uv_file(env: Mapping[str, str]) -> dict[str, Any]:
    """uv's configuration file: the user's, else the machine's."""
    if is_true(env.get("UV_NO_CONFIG")):
        return {}
    user = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "/nonexistent")) / ".config")
    chosen = env.get("UV_CONFIG_FILE")
    candidates = [Path(chosen)] if chosen else [user / "uv/uv.toml", Path("/etc/uv/uv.toml")]
    return next((toml.load(path) for path in candidates if _is_readable(path)), {})


def _is_readable(path: Path) -> bool:
    # One that belongs to another user is not meant for this one.
    return os.access(path, os.R_OK) and path.is_file()
