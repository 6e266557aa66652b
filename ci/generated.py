"""What only the build can have made, held against the composed tree it was made from.

The version file and dist-info lie in no tree and in no other wheel. What they
may hold follows from the tree's pyproject.toml, README and requirements, and
from the identity; RECORD cannot answer for them, as whoever edits a wheel
writes it anew.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email import policy
from email.parser import BytesParser
from functools import cached_property
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from ci import identity, requirements, sbom, wheelfile
from ci.git import Git
from ci.identity import Carried

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VERSION_FILE = "vllm/_version.py"
"""What setuptools-scm writes into the package."""

# What a version file consists of: names that are given plain values, and the
# types that they are annotated with. Nothing that runs.
_PLAIN = (
    ast.Module,
    ast.ImportFrom,
    ast.alias,
    ast.Assign,
    ast.AnnAssign,
    ast.If,
    ast.Expr,
    ast.Name,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.Subscript,
    ast.BinOp,
    ast.BitOr,
    ast.Load,
    ast.Store,
)
_LICENSES = "licenses/"


@dataclass(frozen=True)
class Generated:
    """What a build of `carried` makes.

    Attributes:
        git: a repository that holds the composed tree.
        bill: the bill of materials; None where its pin is not known.
    """

    git: Git
    carried: Carried
    bill: bytes | None

    def wrong(self, file: str, content: bytes) -> str | None:
        """What is wrong with the version file or a file of dist-info (named
        from there on); None if it is what the build writes."""
        if file.startswith(_LICENSES):
            same = self._file(file.removeprefix(_LICENSES)) == content
            return None if same else "differs from the composed tree's"
        checks: dict[str, Callable[[bytes], str | None]] = {
            VERSION_FILE: self._version_file,
            "entry_points.txt": self._entry_points,
            "METADATA": self._metadata,
            "WHEEL": self._wheel,
            "top_level.txt": lambda text: None if text == b"vllm\n" else "names more than vllm",
            identity.FILE: self._identity,
            sbom.FILE: self._bill,
        }
        check = checks.get(file)
        return check(content) if check else "is no file that the build makes"

    # -- one check for each file ---------------------------------------------------

    def _version_file(self, content: bytes) -> str | None:
        try:
            module = ast.parse(content)
        except (SyntaxError, ValueError):
            return "is not Python"
        if not all(_is_plain(node) for node in ast.walk(module)):
            return "holds more than a version"
        version = self.carried.version
        assigned = list(_assigned(module))
        if "__version__" not in dict(assigned):
            return "gives no __version__"
        for name, value in assigned:
            if name in ("version", "__version__") and value != version:
                return f"says version {value}, not {version}"
            if name in ("version_tuple", "__version_tuple__") and not _spells(value, version):
                return f"says version {value}, not {version}"
        return None

    def _entry_points(self, content: bytes) -> str | None:
        project = self._project
        groups = {
            "console_scripts": project.get("scripts", {}),
            "gui_scripts": project.get("gui-scripts", {}),
            **project.get("entry-points", {}),
        }
        wanted = {(g, name, value) for g, rows in groups.items() for name, value in rows.items()}
        found = set()
        group = ""
        for line in content.decode("utf-8", "replace").splitlines():
            if match := re.fullmatch(r"\[(.+)\]", line):
                group = match[1]
            elif line.strip():
                name, _, value = line.partition("=")
                found.add((group, name.strip(), value.strip()))
        for what, rows in (("adds", found - wanted), ("lacks", wanted - found)):
            if rows:
                where, name, _ = min(rows)
                return f"{what} {name} in [{where}], unlike pyproject.toml"
        return None

    def _metadata(self, content: bytes) -> str | None:
        message = BytesParser(policy=policy.compat32).parsebytes(content)
        project = self._project
        said = {"Name": "vllm", "Version": self.carried.version}
        for key, value in said.items():
            if message.get_all(key) != [value]:
                return f"{key} is not {value}"
        readme = project.get("readme")
        body = content.partition(b"\n\n")[2]
        if isinstance(readme, str) and body.rstrip() != (self._file(readme) or b"").rstrip():
            return f"its description is not the composed tree's {readme}"
        allowed = self._requirements
        for line in message.get_all("Requires-Dist") or ():
            wanted = _always(str(line))
            if wanted is not None and wanted not in allowed:
                return f"requires {line}, which requirements/ does not"
        return None

    def _wheel(self, content: bytes) -> str | None:
        tag = wheelfile.tag_of(self.carried.precompiled.file)
        right = wheelfile.with_tag(content, tag) == content
        return None if right else f"its tags are not {tag}"

    def _identity(self, content: bytes) -> str | None:
        carried = self.carried
        own = carried.identity.as_json(carried.variant, carried.tree, carried.precompiled)
        return None if content == own else "holds more than the identity"

    def _bill(self, content: bytes) -> str | None:
        right = self.bill is None or content == self.bill
        return None if right else "is not the bill of materials of this series"

    # -- what the tree says --------------------------------------------------------

    def _file(self, path: str) -> bytes | None:
        blob = self.git.resolve(f"{self.carried.tree}:{path}")
        return None if blob is None else self.git.blob(blob)

    @cached_property
    def _project(self) -> dict[str, Any]:
        text = self._file("pyproject.toml") or b""
        project: dict[str, Any] = tomllib.loads(text.decode("utf-8")).get("project", {})
        return project

    @cached_property
    def _requirements(self) -> frozenset[str]:
        if self._file(f"requirements/{self.carried.variant.value}.txt") is None:
            return frozenset()
        listed = requirements.runtime(self.git, self.carried.tree, self.carried.variant)
        return frozenset(str(Requirement(line)) for line in listed)


def _always(line: str) -> str | None:
    """A requirement in its plain form; None if only an extra asks for it."""
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return line
    marker = requirement.marker
    if marker is not None and "extra" in str(marker) and not marker.evaluate({"extra": ""}):
        return None
    return str(requirement)


def _is_plain(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and node.module in ("__future__", "typing")
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Name) for target in node.targets)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, _PLAIN)


def _assigned(module: ast.Module) -> Iterator[tuple[str, object]]:
    """Every name that gets a value, and that value."""
    for node in ast.walk(module):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            value = node.value
            name = target.id if isinstance(target, ast.Name) else ""
            try:
                yield name, ast.literal_eval(value) if value else None
            except ValueError:
                yield name, ast.unparse(value) if value else None


def _spells(value: object, version: str) -> bool:
    """Whether a tuple is this version, in parts."""
    words = value if isinstance(value, tuple) else ()
    return re.sub(r"[.+]", "", "".join(map(str, words))) == re.sub(r"[.+]", "", version)
