"""Reading TOML, with a fault that names the file and line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ci.errors import Fault

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def load(path: Path) -> dict[str, Any]:
    """What the TOML file at `path` holds.

    Raises:
        Fault: there is no such file, or it is not TOML.
    """
    try:
        table: dict[str, Any] = tomllib.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise Fault(
            f"{path.name} is missing", todo=f"restore it: git checkout -- {path.name}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Fault(f"{path.name} is not valid TOML", todo=str(error)) from None
    return table
