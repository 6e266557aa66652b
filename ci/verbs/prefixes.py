"""`nox -s prefixes`: every prefix and every topic stands by itself, found by trying.

Three kinds of rows:
- a prefix: the series up to a patch imports, and that patch's tests pass there;
- a topic: its patches with all that they need, on the bare pin, do so too;
- a need that a patch declares: without the other patch it does not apply, not
  import, or fails its tests. Where it does none of that, the need is idle.

Only imports and fast tests are run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from ci.core.layout import Layout
from ci.core.progress import say
from ci.core.runlock import alone
from ci.git.store import open_store
from ci.pinned.pin import load_pin
from ci.series.base import open_base
from ci.series.model import read_files
from ci.testing.trials import Kind, Outcome, Runner, Trial, Trier, trials


@dataclass(frozen=True)
class Row:
    """A trial with its outcome.

    Attributes:
        judged: the patches that the trial is about, by file.
    """

    kind: Kind
    name: str
    judged: tuple[str, ...]
    outcome: Outcome

    @property
    def good(self) -> bool:
        """For a need, what counts is that just its patch does not stand without it."""
        if self.kind is Kind.NEED:
            return not self.outcome.stands and self.outcome.stuck in ("", *self.judged)
        return self.outcome.stands


# -- telling ------------------------------------------------------------------


def as_text(rows: Sequence[Row]) -> str:
    """A table, then what is wrong."""
    width = max((len(row.name) for row in rows), default=0)
    lines = [f"{'':7} {'':<{width}}  {'applies':<8} {'imports':<12} {'tests':<22} seconds"]
    for row in rows:
        lines.append(f"{row.kind.value:<7} {row.name:<{width}}  {_cells(row.outcome)}".rstrip())
    for row in rows:
        if not row.good:
            lines += ["", *_wrong(row)]
    bad = sum(not row.good for row in rows)
    lines += ["", f"{len(rows) - bad} of {len(rows)} as they should be"]
    return "\n".join(lines) + "\n"


def _cells(outcome: Outcome) -> str:
    if outcome.applies:
        return "no"
    broken = len(outcome.broken)
    imports = f"{outcome.imported} of {outcome.imported + broken}"
    imports += f" ({outcome.aside})" if outcome.aside else ""
    tests = ", ".join(f"{n} {word}" for word, n in sorted(outcome.tests.items()))
    if outcome.failed and "failed" not in tests:
        tests = "not run to the end"
    return f"{'yes':<8} {imports:<12} {tests or 'none':<22} {outcome.seconds:7.1f}"


def _wrong(row: Row) -> Iterator[str]:
    outcome = row.outcome
    if row.kind is Kind.NEED and outcome.stands:
        yield f"{row.name}: it stands without it; remove the need from series.toml"
        return
    if row.kind is Kind.NEED:
        yield f"{row.name}: cannot be told while {outcome.stuck} does not apply there"
        return
    yield f"{row.name}:"
    if outcome.applies:
        yield f"  {outcome.applies}"
    yield from (f"  {name}: {why}" for name, why in outcome.broken.items())
    yield from (f"  {test}" for test in outcome.failed[:20])


# -- the verb -----------------------------------------------------------------


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument(
        "--only",
        action="append",
        choices=[kind.value for kind in Kind],
        help="rows of this kind only; may be given more than once",
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--again", action="store_true", help="forget what was found before")


def run_all(trier: Trier, wanted: Sequence[Trial]) -> list[Row]:
    """Run trials, saying which one is at work."""
    rows = []
    for number, trial in enumerate(wanted, 1):
        say(f"{number} of {len(wanted)}: {trial.kind.value} {trial.name}")
        judged = tuple(patch.file for patch in trial.judged)
        rows.append(Row(trial.kind, trial.name, judged, trier.run(trial)))
    return rows


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb: 1 if a row is not as it should be."""
    with alone(layout.shared, "prefixes"):
        files = read_files(layout)
        store = open_store(layout.store)
        base = open_base(store, layout.downloads, load_pin(layout.pin))
        kinds = [Kind(word) for word in args.only] if args.only else list(Kind)
        wanted = [trial for trial in trials(files.series) if trial.kind in kinds]
        if args.again:
            (layout.build / "prefixes" / "results.json").unlink(missing_ok=True)
        rows = run_all(Trier(layout.build / "prefixes", store, base, files, runner(layout)), wanted)
    if args.json:
        print(json.dumps([{**asdict(row), "kind": row.kind.value} for row in rows], indent=1))
    else:
        print(as_text(rows), end="")
    return 0 if all(row.good for row in rows) else 1


def runner(layout: Layout) -> Runner:
    """Python with the built wheel's environment, as the tests use it."""
    from ci.testing.environment import make_environment
    from ci.testing.groups import load_selection
    from ci.wheel.composed import composed_series

    env = make_environment(layout.tests, composed_series(layout, layout.store))
    folder = layout.build / "prefixes" / "tree"
    variables = {
        **env.variables([folder, env.support]),
        "HF_HOME": str(env.models.absolute()),
        "OMP_NUM_THREADS": "2",
        # Most modules are the same from tree to tree.
        "PYTHONPYCACHEPREFIX": str((layout.build / "prefixes" / "pycache").absolute()),
    }
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    options = ("-W", "ignore", "--timeout=300", "-m", "not slow")
    libraries = env.environment.site_packages / "vllm"
    selection = load_selection(layout.tests.upstream)
    return Runner(env.environment.python, variables, libraries, options, selection)
