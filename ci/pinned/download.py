"""Files of projects on simple indexes: which there are, and their bytes."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import requests
from pypi_simple import NoSuchProjectError, PyPISimple, tqdm_progress_factory
from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3.util import Retry

from ci.core.errors import Fault
from ci.pinned.indexes import Indexes, without_secrets

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage

ATTEMPTS = 4
"""How often a download is tried before it is given up."""
PAUSE = 0.5
"""Seconds before the second attempt; twice as many before the third, and so on."""
_IDENTITY = {"Accept-Encoding": "identity"}


class _Network(HTTPAdapter):
    """Requests as pip's and uv's settings want them, which the variables that
    requests reads by itself would overrule."""

    def __init__(self, settings: Indexes) -> None:
        self._settings = settings
        retry = Retry(total=3, backoff_factor=0.2, status_forcelist=(502, 503, 504))
        super().__init__(max_retries=retry)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> Any:
        ours = self._settings
        if ours.offline:
            raise requests.ConnectionError(0, "not asked, as UV_OFFLINE is set")
        parts = urlsplit(request.url or "")
        if {parts.hostname, parts.netloc.rpartition("@")[2]} & ours.trusted:
            kwargs["verify"] = False
        elif ours.bundle:
            kwargs["verify"] = ours.bundle
        if ours.proxy:
            kwargs["proxies"] = {"http": ours.proxy, "https": ours.proxy}
        return super().send(request, *args, **{**kwargs, "timeout": ours.timeout})


class _Disk(BaseAdapter):
    """`file://` indexes, as mirrors on a disk are; a folder's page is index.html."""

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> Any:
        path = Path(unquote(urlsplit(request.url or "").path))
        response = requests.Response()
        response.request, response.url = request, request.url or ""
        response.headers["content-type"] = "text/html"
        response.raw = io.BytesIO()
        try:
            file = path / "index.html" if path.is_dir() else path
            response.raw = file.open("rb")
            response.headers["content-length"] = str(file.stat().st_size)
            response.status_code = 200
        except FileNotFoundError:
            response.status_code = 404
        return response

    def close(self) -> None:
        """Nothing is kept open."""


class Client:
    """The indexes that the user's settings name.

    Attributes:
        failures: what could not be fetched so far: from where, and why.
        silent: one of them did not answer at all, rather than refuse.
    """

    def __init__(self, settings: Indexes) -> None:
        self.settings = settings
        self.failures: list[str] = []
        self.silent = False
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, _Network(settings))
        self._session.mount("file://", _Disk())

    def close(self) -> None:
        self._session.close()

    def fault(self, what: str, todo: str) -> Fault:
        """The fault for what no index gave, with all failures listed."""
        network = "no network: " if self.silent else ""
        return Fault(f"{network}{what}", todo=todo, details=tuple(self.failures))

    def files(self, project: str) -> Iterator[DistributionPackage]:
        """The files of a project, one index after the other.

        An index that does not answer is passed over and noted in `failures`.
        """
        for index in self.settings.urls:
            simple = PyPISimple(index, session=self._session)
            try:
                page = simple.get_project_page(project)
            except NoSuchProjectError:
                continue
            except (requests.RequestException, ValueError) as error:
                self._note(simple.get_project_url(project), error)
                continue
            for package in page.packages:
                package.url = _signed_in(package.url, index)
                yield package

    def size(self, url: str) -> int | None:
        """How long the file is, for an index whose page does not say; None if unknown."""
        try:
            with self._session.get(url, stream=True, headers=_IDENTITY) as response:
                response.raise_for_status()
                return int(response.headers["Content-Length"])
        except (requests.RequestException, KeyError, ValueError) as error:
            self._note(url, error)
            return None

    def save(self, package: DistributionPackage, path: Path, size: int) -> bool:
        """Write a file of an index to `path`, starting over where the connection breaks.

        Args:
            size: how long it should be; a shorter one may have been cut off.

        Returns:
            False if it broke `ATTEMPTS` times or the server refuses; see `failures`.
        """
        simple = PyPISimple(session=self._session)
        bar = tqdm_progress_factory(
            desc=package.filename, unit="B", unit_scale=True, disable=not sys.stderr.isatty()
        )
        for attempt in range(1, ATTEMPTS + 1):
            try:
                simple.download_package(package, path, False, progress=bar, headers=_IDENTITY)
                if path.stat().st_size >= size:
                    break
            except requests.RequestException as error:
                if attempt == ATTEMPTS or not _reason(error)[1]:
                    self._note(package.url, error)
                    return False
            time.sleep(PAUSE * attempt)
        return True

    def _note(self, url: str, error: Exception) -> None:
        why, network = _reason(error)
        self.failures.append(f"{without_secrets(url)}: {why}")
        self.silent = self.silent or network


def _signed_in(url: str, index: str) -> str:
    """The file's URL, with the user and password of its index where it is the same server's."""
    parts, ours = urlsplit(url), urlsplit(index)
    if ours.username and parts.netloc == ours.netloc.rpartition("@")[2]:
        return parts._replace(netloc=ours.netloc).geturl()
    return url


def _reason(error: BaseException) -> tuple[str, bool]:
    """Why a request failed, and whether that is because nothing answered."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP status {error.response.status_code}", error.response.status_code >= 500
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not trusted (PIP_CERT names a file of those that are)", False
    if isinstance(error, requests.Timeout):
        return "no answer in time", True
    if isinstance(error, requests.ConnectionError | requests.exceptions.ChunkedEncodingError):
        while error.__context__ is not None:
            error = error.__context__
        return getattr(error, "strerror", None) or "the connection broke", True
    return f"not a simple index ({type(error).__name__})", False
