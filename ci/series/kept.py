"""Whether the project's own git keeps the series' files as they are.

A series lies in a repository of its user's, whose .gitignore and .gitattributes
can leave a file out of the next clone, or give it other bytes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ci.git.repo import Git

_CONVERTING = ("text", "ident", "filter", "working-tree-encoding")


def not_kept(root: Path, paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each file that the project's git would ignore or convert, and what to do about it.

    Args:
        root: the checkout; nothing is wrong where it is no repository.
        paths: the files, from there.
    """
    if not (root / ".git").exists() or not paths:
        return
    git = Git(root / ".git", work_tree=root)
    feed = "".join(f"{path}\0" for path in paths).encode()
    # Status 1 says that none is ignored. A file that is committed already is not, either,
    # and where a pattern starts with `!`, it is the one that keeps the file.
    said = git.attempt("check-ignore", "-z", "-v", "--stdin", stdin=feed).out.split(b"\0")[:-1]
    for source, line, pattern, path in zip(*[iter(map(bytes.decode, said))] * 4, strict=True):
        if pattern.startswith("!"):
            continue
        yield (
            path,
            (
                f"is ignored by `{pattern}` ({source} line {line}), so a clone would not have it: "
                f"git add -f -- {path}, or change that rule"
            ),
        )
    said = git.run("check-attr", "-z", "--stdin", *_CONVERTING, stdin=feed).split(b"\0")[:-1]
    converted: dict[str, list[str]] = {}
    for path, name, value in zip(*[iter(map(bytes.decode, said))] * 3, strict=True):
        # Where nothing is said of `text`, core.autocrlf of each clone decides.
        if value != "unset" and (name == "text" or value != "unspecified"):
            converted.setdefault(path, []).append(f"{name}: {value}")
    for path, rules in converted.items():
        top = path.partition("/")[0]
        yield (
            path,
            (
                f"may be converted by git ({', '.join(rules)}): add to the end of .gitattributes "
                f"`/{top}/** -text -ident -filter -working-tree-encoding`"
            ),
        )
