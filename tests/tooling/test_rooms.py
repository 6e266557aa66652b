"""The rooms of ci/: who may import whom."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# From the ground up: a room imports from those below it and from itself.
ROOMS = (
    "core",
    "git",
    "pinned",
    "series",
    "env",
    "worktree",
    "wheel",
    "roll",
    "testing",
    "send",
    "status",
    "verbs",
)
# Rooms whose functions take what they need (a pin, a folder, a repository), not
# the layout of the whole checkout.
NO_LAYOUT = ROOMS[: ROOMS.index("verbs")]


def _modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((ROOT / "ci").rglob("*.py"))
    }


def _imports(path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of ours that a module names, also inside its functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: a relative import"
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                found.add(below if below in modules else node.module)
    return {name for name in found if name in modules}


def _room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""


def test_every_module_lives_in_a_room() -> None:
    loose = {name for name in _modules() if name.count(".") == 1} - {f"ci.{r}" for r in ROOMS}
    assert loose == {"ci.cli", "ci.__main__"}


def test_no_room_imports_one_above_it() -> None:
    modules = _modules()
    up = [
        (name, other)
        for name, path in modules.items()
        if _room(name)
        for other in _imports(path, modules)
        if not _room(other) or ROOMS.index(_room(other)) > ROOMS.index(_room(name))
        if other != "ci"
    ]
    assert up == []


def test_nobody_imports_a_verb() -> None:
    modules = _modules()
    users = [
        (name, other)
        for name, path in modules.items()
        for other in _imports(path, modules)
        if other.startswith("ci.verbs.") and other != name
    ]
    assert users == []


def test_no_circle() -> None:
    modules = _modules()
    below = {name: _imports(path, modules) - {name} for name, path in modules.items()}
    done: set[str] = set()
    while ready := {name for name, needs in below.items() if name not in done and needs <= done}:
        done |= ready
    assert set(below) - done == set()


def test_rooms_that_know_no_layout() -> None:
    modules = _modules()
    users = [
        name
        for name, path in modules.items()
        if _room(name) in NO_LAYOUT and "ci.core.layout" in _imports(path, modules)
    ]
    assert users == ["ci.core.lines"]  # it makes them
