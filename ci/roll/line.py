"""What a line has beside its series, carried to a line of another name."""

from __future__ import annotations

import re

from ci.core import files
from ci.core.content import REGULAR, Content
from ci.core.lines import DEFAULT, FOLDERS
from ci.series.model import list_files
from ci.series.paths import SeriesPaths

_SERIES = ("pin.toml", "series.toml", "series.lock")


def carried(old: SeriesPaths, new: SeriesPaths, *, keep: bool) -> dict[str, Content | None]:
    """The changes of files that give the line `new` what `old` has beside its series.

    Args:
        keep: whether `old` stays; else `new` takes its place.
    """
    found: dict[str, Content | None] = {}
    for folder in FOLDERS:
        top = old.root / folder / old.line
        for path in list_files(top):
            if not keep:
                found[f"{folder}/{old.line}/{path}"] = None
            if not (folder == "overlay" or (folder == "patches" and _is_of_series(path))):
                content = files.read(files.under(top, path.encode("utf-8")))
                found[f"{folder}/{new.line}/{path}"] = content
    return found if keep else found | _default(old, new)


def _is_of_series(path: str) -> bool:
    return path in _SERIES or ("/" not in path and path.endswith(".patch"))


def _default(old: SeriesPaths, new: SeriesPaths) -> dict[str, Content | None]:
    """patches/lines.toml, if the old line is the default one."""
    text = (old.root / DEFAULT).read_text("utf-8")
    pattern = rf"^(default\s*=\s*)[\"']{re.escape(old.line)}[\"']"
    named = re.sub(pattern, rf'\g<1>"{new.line}"', text, flags=re.MULTILINE)
    return {DEFAULT: Content(REGULAR, named.encode("utf-8"))}
