"""Reading TOML, with a fault that names the file and line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ci import files
from ci.errors import Fault

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def load(path: Path, name: str = "") -> dict[str, Any]:
    """What the TOML file at `path` holds.

    Args:
        name: what to call it in a fault, by its path from the checkout's root.

    Raises:
        Fault: there is no such file, or it is not TOML.
    """
    name = name or path.name
    try:
        table: dict[str, Any] = tomllib.loads(files.read_plain(path).decode("utf-8"))
    except FileNotFoundError:
        raise Fault(f"{name} is missing", todo=f"restore it: git checkout -- {name}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Fault(f"{name} is not valid TOML", todo=str(error)) from None
    return table
