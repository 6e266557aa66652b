"""Files of projects on simple indexes: which there are, and their bytes."""

from __future__ import annotations

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
from ci.pinned.pin import Artifact

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage

ATTEMPTS = 4
"""How often a download that breaks off is begun anew."""
PAUSE = 0.5
"""Seconds before the second attempt; doubled before each further one."""
_IDENTITY = {"Accept-Encoding": "identity"}


class Unreachable(Exception):
    """An index or file could not be had: `str()` says from where and why."""

    def __init__(self, url: str, why: str, *, network: bool) -> None:
        super().__init__(f"{without_secrets(url)}: {why}")
        self.network = network
        """True where nothing answered, False where a server said no."""


class _FileAdapter(BaseAdapter):
    """`file://` indexes, as mirrors on a disk are; a folder's page is index.html."""

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> Any:
        path = Path(unquote(urlsplit(request.url or "").path))
        response = requests.Response()
        response.request, response.url = request, request.url or ""
        response.headers["content-type"] = "text/html"
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


class _Session(requests.Session):
    """A session with pip's choice of certificates, which requests' variables
    would otherwise overrule."""

    def __init__(self, settings: Indexes) -> None:
        super().__init__()
        self.settings = settings
        retry = Retry(total=3, backoff_factor=0.2, status_forcelist=(502, 503, 504))
        for scheme in ("http://", "https://"):
            self.mount(scheme, HTTPAdapter(max_retries=retry))
        self.mount("file://", _FileAdapter())
        if settings.proxy:
            self.proxies = {"http": settings.proxy, "https": settings.proxy}

    def merge_environment_settings(
        self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any
    ) -> Any:
        merged = super().merge_environment_settings(url, proxies, stream, verify, cert)
        if self.settings.bundle:
            merged["verify"] = self.settings.bundle
        parts = urlsplit(str(url))
        if {parts.hostname, parts.netloc.rpartition("@")[2]} & self.settings.trusted:
            merged["verify"] = False
        return merged


class Client:
    """The indexes that the user's settings name.

    Attributes:
        failures: what could not be had from them so far.
    """

    def __init__(self, settings: Indexes) -> None:
        self.settings = settings
        self.session = _Session(settings)
        self.failures: list[Unreachable] = []

    def close(self) -> None:
        self.session.close()

    def files(self, project: str) -> Iterator[DistributionPackage]:
        """The files of a project, one index after the other.

        An index that does not answer is passed over and noted in `failures`.
        """
        for index in self.settings.urls:
            try:
                yield from self._listed(index, project)
            except Unreachable as failure:
                self.failures.append(failure)

    def _listed(self, index: str, project: str) -> list[DistributionPackage]:
        if self.settings.offline and urlsplit(index).scheme != "file":
            raise Unreachable(index, "not asked, as UV_OFFLINE is set", network=True)
        simple = PyPISimple(index, session=self.session)
        try:
            page = simple.get_project_page(project, timeout=self.settings.timeout)
        except NoSuchProjectError:
            return []
        except (requests.RequestException, ValueError) as error:
            raise _unreachable(simple.get_project_url(project), error) from None
        for package in page.packages:
            package.url = _signed_in(package.url, index)
        return page.packages

    def size(self, url: str) -> int:
        """How many bytes the file has, for an index whose page does not say.

        Raises:
            Unreachable: the server does not say either.
        """
        try:
            with self._get(url) as response:
                return int(response.headers["Content-Length"])
        except (requests.RequestException, KeyError, ValueError) as error:
            raise _unreachable(url, error) from None

    def save(self, url: str, path: Path, artifact: Artifact) -> None:
        """Write the file at `url` to `path`, begun anew where the connection breaks.

        Raises:
            Unreachable: it broke `ATTEMPTS` times, or the server refuses.
            Fault: the file has more bytes than the artifact, or fewer.
        """
        failure: Exception
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE * 2 ** (attempt - 1))
            try:
                return self._save(url, path, artifact)
            except EOFError as error:
                failure = _wrong_size(url, artifact, str(error))
            except requests.RequestException as error:
                failure = _unreachable(url, error)
                if not failure.network:
                    break
        raise failure

    def _save(self, url: str, path: Path, artifact: Artifact) -> None:
        progress = tqdm_progress_factory(
            desc=artifact.file, unit="B", unit_scale=True, disable=not sys.stderr.isatty()
        )
        with self._get(url) as response, progress(artifact.size) as bar, path.open("wb") as file:
            said = response.headers.get("Content-Length", str(artifact.size))
            if said != str(artifact.size):
                raise _wrong_size(url, artifact, f"{said} bytes")
            for block in response.iter_content(1 << 18):
                file.write(block)
                bar.update(len(block))
                if file.tell() > artifact.size:
                    raise _wrong_size(url, artifact, f"more than {artifact.size} bytes")
            if file.tell() < artifact.size:
                # A server that does not say how long the file is may have been cut off.
                raise EOFError(f"{file.tell()} bytes")

    def _get(self, url: str) -> requests.Response:
        response = self.session.get(
            url, stream=True, timeout=self.settings.timeout, headers=_IDENTITY
        )
        response.raise_for_status()
        return response


def _wrong_size(url: str, artifact: Artifact, has: str) -> Fault:
    return Fault(
        f"{artifact.file} from {without_secrets(url)} has {has}, the pin says size {artifact.size}",
        todo="correct its size in the pin, or use another index or --source PATH",
    )


def _signed_in(url: str, index: str) -> str:
    """The file's URL, with the user and password of its index where it is the same server's."""
    parts, ours = urlsplit(url), urlsplit(index)
    if ours.username and parts.netloc == ours.netloc.rpartition("@")[2]:
        return parts._replace(netloc=ours.netloc).geturl()
    return url


def _unreachable(url: str, error: Exception) -> Unreachable:
    if isinstance(error, requests.HTTPError) and error.response is not None:
        status = error.response.status_code
        return Unreachable(url, f"HTTP status {status}", network=status >= 500)
    if isinstance(error, requests.exceptions.SSLError):
        why = "its certificate is not trusted (PIP_CERT names a file of those that are)"
        return Unreachable(url, why, network=False)
    if isinstance(error, requests.exceptions.Timeout):
        return Unreachable(url, "no answer in time", network=True)
    if isinstance(error, requests.ConnectionError | requests.exceptions.ChunkedEncodingError):
        return Unreachable(url, _reason(error), network=True)
    return Unreachable(url, f"not a simple index ({type(error).__name__})", network=False)


def _reason(error: BaseException) -> str:
    """The innermost cause, in the operating system's words."""
    todo: list[Any] = [error]
    for cause in todo:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        if isinstance(cause, BaseException):
            more = [cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args]
            todo += [one for one in more if one not in todo]
    return "the connection broke"
