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

    uv = _uv_file(env)
    listed = [entry for entry in uv.get("index", []) if isinstance(entry, dict)]
    told = {name[4:].lower().replace("_", "-"): env[name] for name in env if name[:4] == "PIP_"}
    pip = {**_pip_file(env), **{key: value for key, value in told.items() if value}}
    default = (
        _url(env.get("UV_DEFAULT_INDEX", ""))
        or env.get("UV_INDEX_URL")
        or env.get("PIP_INDEX_URL")
        or next((entry["url"] for entry in listed if entry.get("default")), None)
        or uv.get("index-url")
        or pip.get("index-url")
        or PYPI_SIMPLE_ENDPOINT
    )
    more = [
        *map(_url, env.get("UV_INDEX", "").split()),
        *env.get("UV_EXTRA_INDEX_URL", "").split(),
        *(entry["url"] for entry in listed if not entry.get("default")),
        *uv.get("extra-index-url", []),
        *pip.get("extra-index-url", "").split(),
    ]
    links = env.get("UV_FIND_LINKS", "").replace(",", " ") + " " + pip.get("find-links", "")
    no_index = is_true(env.get("UV_NO_INDEX")) or is_true(pip.get("no-index"))
    timeout = pip.get("timeout") or pip.get("default-timeout", "")
    bundles = map(env.get, ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"))
    return Indexes(
        urls=() if no_index else tuple(dict.fromkeys(map(str, [default, *more]))),
        folders=tuple(_folder(link) for link in links.split() if not _is_web(link)),
        bundle=next(filter(None, (pip.get("cert"), *bundles)), None),
        trusted=frozenset(pip.get("trusted-host", "").split()),
        proxy=pip.get("proxy"),
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


def _is_web(link: str) -> bool:
    """Whether a `find-links` is a page on the web; those are left to the indexes."""
    return urlsplit(link).scheme not in ("", "file")


def _folder(link: str) -> Path:
    return Path(unquote(urlsplit(link).path)).expanduser()


def _pip_file(env: Mapping[str, str]) -> dict[str, str]:
    """What pip's configuration files say, the later ones winning, as pip reads them."""
    chosen = env.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:
        return {}
    machine = env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
    home, user = _homes(env)
    paths = [
        *(Path(folder, "pip/pip.conf") for folder in machine),
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        user / "pip/pip.conf",
        Path(sys.prefix, "pip.conf"),
        *([Path(chosen)] if chosen else []),
    ]
    found: dict[str, str] = {}
    for path in filter(_is_readable, paths):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            what = f"pip's configuration {path} cannot be read"
            raise Fault(what, todo=str(error).splitlines()[0]) from None
        for section in ("global", "download", "install"):
            if parser.has_section(section):
                found.update(parser.items(section))
    return found


def _uv_file(env: Mapping[str, str]) -> dict[str, Any]:
    """uv's configuration file, the user's, else the machine's; its [pip] stands below it."""
    if is_true(env.get("UV_NO_CONFIG")):
        return {}
    chosen = env.get("UV_CONFIG_FILE")
    usual = [_homes(env)[1] / "uv/uv.toml", Path("/etc/uv/uv.toml")]
    for path in filter(_is_readable, [Path(chosen)] if chosen else usual):
        table = toml.load(path)
        return {**table.get("pip", {}), **table}
    return {}


def _homes(env: Mapping[str, str]) -> tuple[Path, Path]:
    """The user's folder, and the one that their settings lie in."""
    home = Path(env.get("HOME", "/nonexistent"))
    return home, Path(env.get("XDG_CONFIG_HOME") or home / ".config")


def _is_readable(path: Path) -> bool:
    # One that belongs to another user is not meant for this one.
    return os.access(path, os.R_OK) and path.is_file()
