"""The one wrapper around git, sealed from the user's settings.

No other module starts git. Every call runs in an environment built from
nothing (`env -i`): no GIT_* variable, no user or system configuration, no
global attributes, no replacement refs, no locale and no time zone of the
user's reach it, so the same input gives the same bytes on every machine.
GitPython starts the processes; it can add to the environment it inherits but
not take away from it, hence `env -i` in front of each command.

Input and output are bytes throughout: a patch may hold any byte.
"""

from __future__ import annotations

import atexit
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import git as gitpython

from ci.core.checkpoints import checkpoint
from ci.core.errors import Fault
from ci.core.offline import offline

# Settings that a repository's own configuration file could still bring in.
_CONFIG = (
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.hooksPath=/dev/null",
    "core.autocrlf=false",
    "core.eol=lf",
    "core.fileMode=true",
    "core.symlinks=true",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.quotePath=true",
    "core.abbrev=40",
    "core.logAllRefUpdates=false",
    "commit.gpgSign=false",
    "diff.external=",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "diff.suppressBlankEmpty=false",
    "diff.renames=false",
    "apply.whitespace=nowarn",
    "apply.ignoreWhitespace=no",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.file.allow=always",
    "advice.detachedHead=false",
    "init.defaultBranch=main",
    "i18n.commitEncoding=utf-8",
    "i18n.logOutputEncoding=utf-8",
)


# What git can fail on that lies with the machine, not with a repository.
_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE)


class GitError(Fault):
    """A git command failed in a way that its caller did not expect."""


@dataclass(frozen=True)
class Result:
    """What one git command gave back."""

    status: int
    out: bytes
    err: bytes

    @property
    def ok(self) -> bool:
        return self.status == 0


@dataclass(frozen=True)
class Identity:
    """Who a commit is by, and when: `date` is git's raw form, `<seconds> <zone>`."""

    name: str
    email: str
    date: str


@cache
def _executable() -> str:
    found = shutil.which("git")
    if found is None:
        raise Fault("git is not on PATH", todo="install git 2.34 or newer")
    return found


@cache
def _sealed_home() -> str:
    """A folder for git to take as the user's home.

    Its one setting lets git read a clone that belongs to another user; the
    process at the other end of a local fetch takes that from a file only.
    """
    home = tempfile.mkdtemp(prefix="sealed-home-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    Path(home, ".gitconfig").write_text("[safe]\n\tdirectory = *\n")
    return home


_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
# The way to an SSH key, to proxies and to certificates; nothing that changes content.
_NETWORK = (
    "SSH_AUTH_SOCK",
    "SSH_AGENT_PID",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
    "CURL_CA_BUNDLE",
    *_PROXIES,
    *map(str.upper, _PROXIES),
)


def _network_environment() -> dict[str, str]:
    """What a fetch over the network needs of the user's environment."""
    found = {name: os.environ[name] for name in _NETWORK if name in os.environ}
    return {**found, "GIT_ALLOW_PROTOCOL": "file"} if offline() else found


def user_identity(where: Path) -> Identity | None:
    """Who the user is, by their own git settings (as in `where`) and environment.

    The one command that is not sealed: it only asks, and what it asks for is
    the user's. None where git would have to guess.
    """
    command = [_executable(), "-c", "user.useConfigOnly=true", "var", "GIT_AUTHOR_IDENT"]
    status, out, _ = gitpython.Git(where).execute(
        command, with_extended_output=True, with_exceptions=False, stdout_as_string=False
    )
    assert isinstance(out, bytes)
    match = re.fullmatch(r"(.+) <([^<>]+)> (\d+ [+-]\d{4})", out.decode("utf-8", "replace").strip())
    return Identity(match[1], match[2], match[3]) if match and status == 0 else None


@dataclass(frozen=True)
class Git:
    """One repository, seen through sealed git commands.

    Attributes:
        git_dir: the repository (bare, or a work tree's .git folder).
        work_tree: where commands that need one work.
        index: an index file of its own, so that composing never touches
            the work tree's.
    """

    git_dir: Path
    work_tree: Path | None = None
    index: Path | None = None
    extra: Mapping[str, str] = field(default_factory=dict)

    def _environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        home = _sealed_home()
        sealed = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": home,
            "XDG_CONFIG_HOME": home,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_DIR": str(self.git_dir.absolute()),
            "LC_ALL": "C",
            "TZ": "UTC",
        }
        if self.work_tree is not None:
            sealed["GIT_WORK_TREE"] = str(self.work_tree.absolute())
        if self.index is not None:
            sealed["GIT_INDEX_FILE"] = str(self.index.absolute())
        sealed.update(self.extra)
        sealed.update(env or {})
        return sealed

    def attempt(
        self,
        *args: str,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Result:
        """Run `git ARGS` and hand back what came of it, whatever the status."""
        checkpoint("git")
        settings = [arg for item in _CONFIG for arg in ("-c", item)]
        variables = [f"{k}={v}" for k, v in self._environment(env).items()]
        command = ["env", "-i", *variables, _executable(), *settings, *args]
        where = cwd or self.work_tree or self.git_dir.parent
        with tempfile.TemporaryFile() as feed:
            feed.write(stdin or b"")
            feed.seek(0)
            status, out, err = gitpython.Git(where).execute(
                command,
                istream=feed,
                with_extended_output=True,
                with_exceptions=False,
                stdout_as_string=False,
                strip_newline_in_stdout=False,
            )
        err_bytes = err if isinstance(err, bytes) else err.encode("utf-8", "surrogateescape")
        assert isinstance(out, bytes)
        return Result(status, out, err_bytes)

    def run(
        self,
        *args: str,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> bytes:
        """Run `git ARGS` and hand back its standard output.

        Raises:
            GitError: git exited with another status than 0.
            OSError: what it says is that the disk is full or cannot be written.
        """
        result = self.attempt(*args, stdin=stdin, env=env, cwd=cwd)
        if not result.ok:
            raise self._failed(args, result)
        return result.out

    def _failed(self, args: Sequence[str], result: Result) -> Exception:
        """The fault for a command that should have succeeded."""
        for code in _MACHINE:
            if os.strerror(code).encode() in result.err:
                return OSError(code, os.strerror(code), str(self.git_dir))
        lines = result.err.decode("utf-8", "replace").strip().splitlines()
        return GitError(
            f"git {' '.join(args[:2])} failed with status {result.status} in {self.git_dir}",
            todo="git said:",
            details=tuple(lines[:20]),
        )

    def text(self, *args: str, stdin: bytes | None = None) -> str:
        """`run`, for output that is plain ASCII: an id, a name or a few lines."""
        return self.run(*args, stdin=stdin).decode("ascii").strip()

    # -- commands that several rooms need --------------------------------------

    def init(self) -> None:
        """Make the (bare) repository if it is not there; harmless again."""
        self.git_dir.mkdir(parents=True, exist_ok=True)
        self.run("init", "-q", "--bare", "--template=", cwd=self.git_dir)

    def resolve(self, name: str) -> str | None:
        """The full object id that `name` stands for, None if there is none."""
        result = self.attempt("rev-parse", "-q", "--verify", "--end-of-options", name)
        return result.out.decode("ascii").strip() if result.ok else None

    def tree_of(self, commit: str) -> str:
        return self.text("rev-parse", "--verify", f"{commit}^{{tree}}")

    def is_ancestor(self, commit: str, head: str) -> bool:
        """Whether `head` stands on `commit`, or is it."""
        args = ("merge-base", "--is-ancestor", commit, head)
        result = self.attempt(*args)
        if result.status not in (0, 1):
            raise self._failed(args, result)
        return result.ok

    def blob(self, object_id: str) -> bytes:
        return self.run("cat-file", "blob", object_id)

    def commit_tree(self, tree: str, parents: Iterable[str], who: Identity, message: bytes) -> str:
        """A commit whose author and committer are both `who`, byte for byte."""
        person = {
            f"GIT_{role}_{part}": value
            for role in ("AUTHOR", "COMMITTER")
            for part, value in (("NAME", who.name), ("EMAIL", who.email), ("DATE", who.date))
        }
        links = [arg for parent in parents for arg in ("-p", parent)]
        out = self.run("commit-tree", tree, *links, stdin=message, env=person)
        return out.decode("ascii").strip()

    def attempt_fetch(self, source: str, *refspecs: str, depth: int = 0) -> Result:
        """Fetch from a remote, a clone or a mirror.

        Args:
            depth: how many commits of each history to take; 0 takes all.
        """
        history = [f"--depth={depth}"] if depth else []
        quiet = ("-q", "--no-tags", "--no-write-fetch-head", *history)
        where = ("--", source, *refspecs)
        return self.attempt("fetch", *quiet, *where, env=_network_environment())

    def attempt_list(self, source: str, *refs: str) -> Result:
        """Ask a remote for refs."""
        return self.attempt("ls-remote", "-q", "--", source, *refs, env=_network_environment())
