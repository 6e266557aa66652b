"""Finding files on simple indexes and getting them whole, for `sources`.

A file is written as NAME.part and continued with a range request where a run
before, or the connection, broke off. Nothing here decides whether a file is
good: `sources` compares it with the pin before it gets its name.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import requests
from pypi_simple import NoSuchProjectError, PyPISimple, tqdm_progress_factory
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.auth import AuthBase, HTTPBasicAuth
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

from ci.indexes import Indexes, without_secrets

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage, ProgressTracker

ATTEMPTS = 4
"""How often in a row a download may fail without a byte of progress."""
PAUSE = 0.5
"""Seconds before the second attempt; doubled before each further one."""
_CHUNK = 1 << 18


class Unreachable(Exception):
    """An index or file could not be had: `str()` says from where and why."""

    def __init__(self, url: str, why: str, *, network: bool) -> None:
        super().__init__(f"{without_secrets(url)}: {why}")
        self.network = network
        """True where nothing answered, False where a server said no."""


class WrongLength(Exception):
    """The server's file has more or fewer bytes: `str()` says how many."""


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


class _IndexAuth(AuthBase):
    """The user and password in an index's URL, for that host only."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        self.known = {
            parts.hostname: HTTPBasicAuth(unquote(parts.username), unquote(parts.password or ""))
            for parts in map(urlsplit, urls)
            if parts.username
        }

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        known = self.known.get(urlsplit(request.url or "").hostname)
        return known(request) if known else request


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
        auth = _IndexAuth(settings.urls)
        if auth.known:
            self.auth = auth
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
    """The indexes that the user's settings name."""

    def __init__(self, settings: Indexes) -> None:
        self.settings = settings
        self.session = _Session(settings)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.session.close()

    def project(self, index: str, project: str) -> list[DistributionPackage]:
        """The files that one index has of `project`; none where it has no such project.

        Raises:
            Unreachable: the index did not answer, or not with a simple page.
        """
        if self.settings.offline and urlsplit(index).scheme != "file":
            raise Unreachable(index, "not asked, as UV_OFFLINE is set", network=True)
        simple = PyPISimple(index, session=self.session)
        try:
            page = simple.get_project_page(project, timeout=self.settings.timeout)
        except NoSuchProjectError:
            return []
        except (requests.RequestException, ValueError) as error:
            raise _unreachable(simple.get_project_url(project), error) from None
        return page.packages

    def size(self, url: str) -> int:
        """How many bytes the file has, for an index whose page does not say.

        Raises:
            Unreachable: the server does not say either.
        """
        headers = {"Accept-Encoding": "identity"}
        try:
            with self.session.get(
                url, stream=True, timeout=self.settings.timeout, headers=headers
            ) as response:
                response.raise_for_status()
                return int(response.headers["Content-Length"])
        except (requests.RequestException, KeyError, ValueError) as error:
            raise _unreachable(url, error) from None

    def continue_file(self, url: str, part: Path, size: int) -> None:
        """Bring `part` to `size` bytes, from where it stands.

        Raises:
            Unreachable: it made no progress for `ATTEMPTS` times.
            WrongLength: it has more bytes than `size`, or fewer.
        """
        with _bar(part, size) as bar:
            bar.update(_length(part))
            failed = restarted = 0
            while (before := _length(part)) < size:
                error = self._attempt(url, part, size, bar)
                failed = 0 if _length(part) > before else failed + 1
                restarted += before > 0 and not part.exists()
                if restarted > 1:
                    # Twice nothing came after these bytes: the file ends there.
                    raise WrongLength(f"{before} bytes and no more")
                if failed >= ATTEMPTS:
                    raise error or Unreachable(url, "sends nothing", network=True)
                if failed:
                    time.sleep(PAUSE * 2 ** (failed - 1))

    def _attempt(self, url: str, part: Path, size: int, bar: ProgressTracker) -> Unreachable | None:
        """One request; what broke it off, where it is worth another try."""
        have = _length(part)
        headers = {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        try:
            with self.session.get(
                url, stream=True, timeout=self.settings.timeout, headers=headers
            ) as response:
                if response.status_code == 416 or not _fits(response, have):
                    bar.update(-have)
                    part.unlink()
                    return None
                response.raise_for_status()
                _check_length(response, size)
                resumed = response.status_code == 206
                if not resumed:
                    bar.update(-have)
                self._write(response, part, size, bar, resumed=resumed)
        except (requests.RequestException, HTTPError) as error:
            failure = _unreachable(url, error)
            if not failure.network:
                raise failure from None
            return failure
        return None

    def _write(
        self,
        response: requests.Response,
        part: Path,
        size: int,
        bar: ProgressTracker,
        *,
        resumed: bool,
    ) -> None:
        with part.open("ab" if resumed else "wb") as file:
            # read1, unlike iter_content, hands over what came before a break.
            while chunk := response.raw.read1(_CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
                if file.tell() > size:
                    raise WrongLength(f"more than {size} bytes")


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _check_length(response: requests.Response, size: int) -> None:
    """Stop at the start of a whole answer of another length: where the server's
    file is the shorter, asking on would never end."""
    said = response.headers.get("Content-Length", "")
    whole = response.status_code == 200 and "Content-Encoding" not in response.headers
    if whole and said.isdigit() and int(said) != size:
        raise WrongLength(f"{said} bytes")


def _fits(response: requests.Response, have: int) -> bool:
    """False for a partial answer that does not go on where we stand."""
    if response.status_code != 206:
        return True
    return response.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _bar(part: Path, size: int) -> ProgressTracker:
    """pypi-simple's progress bar; none where nobody watches."""
    make = tqdm_progress_factory(
        desc=part.name.removesuffix(".part"),
        unit="B",
        unit_scale=True,
        disable=not sys.stderr.isatty(),
    )
    return make(size)


def _unreachable(url: str, error: Exception) -> Unreachable:
    if isinstance(error, requests.HTTPError) and error.response is not None:
        status = error.response.status_code
        return Unreachable(url, f"HTTP status {status}", network=status >= 500)
    if isinstance(error, requests.exceptions.SSLError):
        why = "its certificate is not trusted (PIP_CERT names a file of those that are)"
        return Unreachable(url, why, network=False)
    if isinstance(error, requests.exceptions.Timeout):
        return Unreachable(url, "no answer in time", network=True)
    if isinstance(error, requests.ConnectionError | HTTPError):
        return Unreachable(url, _reason(error), network=True)
    return Unreachable(url, f"not a simple index ({type(error).__name__})", network=False)


def _reason(error: BaseException) -> str:
    """The innermost cause, in the operating system's words."""
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
    return "the connection broke"


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    todo: list[object] = [error]
    while todo:
        item = todo.pop(0)
        if isinstance(item, BaseException) and item not in seen:
            seen.append(item)
            yield item
            todo += [item.__cause__, item.__context__, getattr(item, "reason", None), *item.args]
