"""A status as text for one screen, and as one page with nothing outside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from ci.status.model import PinStatus, RollStatus, Status, TopicStatus, WheelStatus, total

# -- words that both share ------------------------------------------------------


def _age(pin: PinStatus) -> str:
    if not pin.newest:
        return pin.note or "newest release not asked for"
    if pin.behind == 0:
        return "the newest release"
    return f"{pin.behind} releases behind {pin.newest}"


def _size(topic: TopicStatus) -> str:
    added, removed = total(topic.patches, "added"), total(topic.patches, "removed")
    own, lines = total(topic.patches, "overlay_files"), total(topic.patches, "overlay_lines")
    return f"+{added} −{removed} upstream, {own} new files ({lines} lines)"


def _where(topic: TopicStatus) -> str:
    return topic.state + (f", {topic.upstream}" if topic.upstream else "")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {what}" for what, number in counts.items()) or "no patches"


def _roll(roll: RollStatus) -> str:
    solving = f"; being solved: {roll.solving}" if roll.solving else ""
    return _counts(roll.counts) + (" (of an older series)" if roll.stale else "") + solving


def _wheel(wheel: WheelStatus) -> str:
    if wheel.note:
        return wheel.note
    return "this series" if wheel.matches else f"series {wheel.series}, not this one"


# -- text -----------------------------------------------------------------------


def as_text(status: Status) -> str:
    """One screen."""
    return "".join(f"{line}\n" for line in _lines(status))


def _lines(status: Status) -> Iterator[str]:
    pin = status.pin
    yield f"series {status.series} on vLLM {pin.version} ({pin.commit[:12]}): {_age(pin)}"
    for topic in status.topics:
        yield ""
        needs = f"  needs {', '.join(topic.needs)}" if topic.needs else ""
        yield f"{topic.name}: {topic.title}  [{_where(topic)}]{needs}"
        yield f"  {_size(topic)}"
        for patch in topic.patches:
            own = f"  {patch.overlay_files} new" if patch.overlay_files else ""
            yield f"  {patch.file[:4]} {patch.subject}  +{patch.added} −{patch.removed}{own}"
    yield ""
    yield from _section("roll", [f"{roll.target}: {_roll(roll)}" for roll in status.rolls])
    yield from _section("tests", list(status.tests))
    yield from _section("wheels", [f"{w.file}: {_wheel(w)}" for w in status.wheels])
    yield from _section("work tree", list(status.work_tree))


def _section(name: str, lines: list[str], most: int = 12) -> Iterator[str]:
    shown = lines[:most] or ["none yet"]
    for number, line in enumerate(shown):
        yield f"{name if number == 0 else '':<10} {line}"
    if len(lines) > most:
        yield f"{'':<10} … and {len(lines) - most} more"


# -- HTML -----------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; vertical-align: top;
         border-bottom: 1px solid #8884 }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
code { font-size: .92em } .dim { opacity: .65 } .bad { color: #c33; font-weight: 600 }
"""


def as_html(status: Status) -> str:
    """One page: no script, nothing loaded from elsewhere."""
    pin = status.pin
    body = [
        f"<h1>Series <code>{escape(status.series)}</code> on vLLM {escape(pin.version)}</h1>",
        f"<p><code>{escape(pin.commit[:12])}</code>, {escape(_age(pin))}</p>",
        *(_topic_html(topic) for topic in status.topics),
        "<h2>Roll</h2>",
        _table(
            ("vLLM", "verdicts"),
            [(escape(roll.target), _flag(_roll(roll), bad=_open(roll))) for roll in status.rolls],
        ),
        "<h2>Wheels</h2>",
        _table(
            ("file", "variant", "is of"),
            [
                (
                    f"<code>{escape(w.file)}</code>",
                    escape(w.variant),
                    _flag(_wheel(w), bad=not w.matches),
                )
                for w in status.wheels
            ],
        ),
        "<h2>Tests</h2>",
        _list(status.tests),
        "<h2>Work tree</h2>",
        _list(status.work_tree),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Series {escape(status.series)}</title><style>{_STYLE}</style></head>\n<body>"
        + "\n".join(body)
        + "</body></html>\n"
    )


def _open(roll: RollStatus) -> bool:
    from ci.roll.verdict import Outcome

    return any(Outcome(what).open for what in roll.counts)


def _flag(text: str, *, bad: bool) -> str:
    return f'<span class="bad">{escape(text)}</span>' if bad else escape(text)


def _topic_html(topic: TopicStatus) -> str:
    link = escape(topic.upstream)
    where = f'<a href="{link}">{link}</a>' if link.startswith("https://") else link
    rows = [
        (
            f"<code>{escape(p.file[:4])}</code> {escape(p.subject)}",
            f"+{p.added} −{p.removed}",
            str(p.files),
            f"{p.overlay_files} ({p.overlay_lines} lines)",
        )
        for p in topic.patches
    ]
    needs = f"; needs {escape(', '.join(topic.needs))}" if topic.needs else ""
    return (
        f"<h2>{escape(topic.name)}: {escape(topic.title)}</h2>"
        f'<p class="dim">{escape(topic.state)} {where}{needs}</p>'
        + _table(("patch", "lines upstream", "files", "new files"), rows)
    )


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table of cells that are HTML already."""
    if not rows:
        return '<p class="dim">none yet</p>'
    head = "".join(f"<th>{escape(word)}</th>" for word in heads)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _list(lines: tuple[str, ...]) -> str:
    if not lines:
        return '<p class="dim">none yet</p>'
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
