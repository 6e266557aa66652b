"""What this project is called: the table `[tool.series]` of pyproject.toml.

Nothing else in the tooling knows a name, so that another project on vLLM takes
the tooling as it is, with a table, patches and overlay files of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from ci import CHECKOUT
from ci.core import toml
from ci.core.errors import Fault

_FILE = CHECKOUT / "pyproject.toml"


@dataclass(frozen=True)
class Project:
    """The names that end up in what is made.

    Attributes:
        name: whose the commits are, until a person sends one upstream.
        email: the address beside it.
        label: marks versions (`0.17.1+LABEL.…`), files in the wheel and, in
            capitals, environment variables of the tests.
    """

    name: str
    email: str
    label: str

    @property
    def author(self) -> str:
        return f"{self.name} <{self.email}>"

    def variable(self, name: str) -> str:
        """An environment variable that passes something to the project's tests."""
        return f"{self.label.upper()}_{name}"


@cache
def project() -> Project:
    """The project that the running tooling is part of.

    Raises:
        Fault: the table is missing, or a name in it can't be used.
    """
    where = "pyproject.toml [tool.series]"
    table = toml.load(_FILE).get("tool", {}).get("series")
    if table is None:
        raise Fault(f"{where} is missing", todo="add it, with name, email and label")
    found = toml.structure(table, Project, where)
    if not re.fullmatch(r"[^<>\n]*[^<>\s][^<>\n]*", found.name):
        raise Fault(f"{where}: the name `{found.name}` cannot stand in a commit", todo="change it")
    if not re.fullmatch(r"[^<>\s]+@[^<>\s]+", found.email):
        raise Fault(
            f"{where}: `{found.email}` is not an email address", todo="write it as name@host"
        )
    if not re.fullmatch(r"[a-z][a-z0-9]*", found.label):
        todo = "use small letters and digits, a letter first"
        raise Fault(f"{where}: `{found.label}` cannot stand in a version", todo=todo)
    return found
