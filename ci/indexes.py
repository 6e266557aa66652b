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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ci import toml
from ci.errors import Fault


def _public_index() -> str:
    """The index that the clients use where no setting names one."""
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    return PYPI_SIMPLE_ENDPOINT


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
    uv_file, pip_file = _uv_files(env), _pip_files(env)
    default = (
        _plain(env.get("UV_DEFAULT_INDEX", ""))
        or env.get("UV_INDEX_URL")
        or env.get("PIP_INDEX_URL")
        or uv_file.default
        or pip_file.get("index-url")
        or _public_index()
    )
    more = [
        *map(_plain, env.get("UV_INDEX", "").split()),
        *env.get("UV_EXTRA_INDEX_URL", "").split(),
        *uv_file.extra,
        *_pip(env, pip_file, "extra-index-url").split(),
    ]
    only_folders = _true(env.get("UV_NO_INDEX")) or _true(_pip(env, pip_file, "no-index"))
    links = [
        *env.get("UV_FIND_LINKS", "").replace(",", " ").split(),
        *_pip(env, pip_file, "find-links").split(),
    ]
    return Indexes(
        urls=() if only_folders else tuple(dict.fromkeys([default, *more])),
        folders=tuple(_folders(links)),
        bundle=_pip(env, pip_file, "cert")
        or env.get("REQUESTS_CA_BUNDLE")
        or env.get("CURL_CA_BUNDLE")
        or env.get("SSL_CERT_FILE")
        or None,
        trusted=frozenset(_pip(env, pip_file, "trusted-host").split()),
        proxy=_pip(env, pip_file, "proxy") or None,
        timeout=_seconds(_pip(env, pip_file, "timeout"), env.get("PIP_DEFAULT_TIMEOUT")),
        offline=offline(env),
    )


def offline(env: Mapping[str, str] = os.environ) -> bool:
    """Whether uv, and with it this tool, is told to use no network."""
    return _true(env.get("UV_OFFLINE"))


def without_secrets(url: str) -> str:
    """The URL without the user and password that may be in it, for messages."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _pip(env: Mapping[str, str], file: Mapping[str, str], key: str) -> str:
    """One of pip's settings: its variable, else what its files say."""
    return env.get("PIP_" + key.upper().replace("-", "_")) or file.get(key, "")


def _true(value: str | None) -> bool:
    return (value or "").strip().lower() in ("1", "true", "yes", "on", "t", "y")


def _seconds(*values: str | None) -> float:
    for value in values:
        try:
            return max(1.0, float(value or ""))
        except ValueError:
            continue
    return 30.0


def _plain(index: str) -> str:
    """The URL of uv's `name=url`."""
    name, equals, url = index.partition("=")
    return url if equals and ":" not in name else index


def _folders(links: list[str]) -> Iterator[Path]:
    """The local ones; pages of links on the web are left to the indexes."""
    for link in links:
        parts = urlsplit(link)
        if parts.scheme in ("", "file"):
            yield Path(unquote(parts.path)).expanduser()


def _pip_files(env: Mapping[str, str]) -> dict[str, str]:
    """What pip's configuration files say, the later ones winning, as pip reads them."""
    chosen = env.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return {}
    home = Path(env.get("HOME", "/nonexistent"))
    user = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    paths = [
        *(Path(d) / "pip/pip.conf" for d in env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")),
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        user / "pip/pip.conf",
        Path(sys.prefix) / "pip.conf",
        *([Path(chosen)] if chosen else []),
    ]
    found: dict[str, str] = {}
    for path in paths:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text(encoding="utf-8"))
        except OSError:
            continue
        except (configparser.Error, UnicodeDecodeError) as error:
            raise Fault(
                f"pip's configuration {path} cannot be read", todo=str(error).splitlines()[0]
            ) from None
        for section in ("global", "download", "install"):
            if parser.has_section(section):
                found.update(parser.items(section))
    return found


@dataclass(frozen=True)
class _UvFile:
    default: str | None
    extra: tuple[str, ...]


def _is_readable(path: Path) -> bool:
    # One that belongs to another user is not meant for this one.
    return os.access(path, os.R_OK) and path.is_file()


def _uv_files(env: Mapping[str, str]) -> _UvFile:
    """What uv's configuration file says: the user's, else the machine's."""
    if _true(env.get("UV_NO_CONFIG")):
        return _UvFile(None, ())
    home = Path(env.get("HOME", "/nonexistent"))
    user = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    chosen = env.get("UV_CONFIG_FILE")
    candidates = [Path(chosen)] if chosen else [user / "uv/uv.toml", Path("/etc/uv/uv.toml")]
    table: dict[str, Any] = next((toml.load(p) for p in candidates if _is_readable(p)), {})
    entries = [entry for entry in table.get("index", []) if isinstance(entry, dict)]
    pip_table = table.get("pip", {})
    default = next((e.get("url") for e in entries if e.get("default")), None)
    extra = [e["url"] for e in entries if "url" in e and not e.get("default")]
    extra += table.get("extra-index-url", []) or pip_table.get("extra-index-url", [])
    return _UvFile(
        default or table.get("index-url") or pip_table.get("index-url"), tuple(map(str, extra))
    )
