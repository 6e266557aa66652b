"""A status as text for one screen, and as one page with nothing outside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from ci.series.drift import Drift
from ci.status.model import (
    PinStatus,
    RollStatus,
    SharedTopic,
    Status,
    TopicOnLine,
    TopicStatus,
    WheelStatus,
)

# -- words that both share ------------------------------------------------------


def _age(pin: PinStatus) -> str:
    if not pin.newest:
        return pin.note or "newest release not asked for"
    if pin.behind == 0:
        return "the newest release"
    return f"{pin.behind} releases behind {pin.newest}"


def _commit(pin: PinStatus) -> str:
    return pin.commit[:12] or "of no known commit"


def _size(topic: TopicStatus) -> str:
    own = sum(p.overlay_files for p in topic.patches)
    lines = sum(p.overlay_lines for p in topic.patches)
    return f"+{topic.added} −{topic.removed} upstream, {own} new files ({lines} lines)"


def _where(topic: TopicStatus) -> str:
    return topic.state + (f", {topic.upstream}" if topic.upstream else "")


def _cell(on: TopicOnLine | Drift | None) -> str:
    """A topic on one line, in a few words."""
    if on is None:
        return "–"
    if isinstance(on, Drift):
        return on.verdict.value + (f": {on.here}" if on.here else "")
    sent = f", {on.upstream.rpartition('/')[2]}" if on.upstream else ""
    return f"{on.state}{sent} +{on.added} −{on.removed}"


def _reason(topic: SharedTopic) -> str:
    return " ".join(on.reason for on in topic.on.values() if isinstance(on, Drift))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {what}" for what, number in counts.items()) or "no patches"


def _roll(roll: RollStatus) -> str:
    solving = f"; being solved: {roll.solving}" if roll.solving else ""
    return _counts(roll.counts) + (" (of an older series)" if roll.stale else "") + solving


def _is_open(roll: RollStatus) -> bool:
    from ci.roll.verdict import Outcome

    return any(Outcome(what).open for what in roll.counts)


def _wheel(wheel: WheelStatus) -> str:
    if wheel.note:
        return wheel.note
    return "this series" if wheel.matches else f"series {wheel.series}, not this one"


def _sections(status: Status) -> Iterator[tuple[str, Sequence[tuple[str, bool]]]]:
    """What follows the topics: each line, and whether somebody has to see to it."""
    yield "roll", [(f"{roll.target}: {_roll(roll)}", _is_open(roll)) for roll in status.rolls]
    yield "tests", [(line, False) for line in status.tests]
    yield "wheels", [(f"{w.file}: {_wheel(w)}", not w.matches) for w in status.wheels]
    yield "work tree", [(line, False) for line in status.work_tree]


# -- text -----------------------------------------------------------------------

_MOST = 12
"""Lines of one section that a screen shows."""


def as_text(status: Status) -> str:
    """One screen."""
    return "".join(f"{line}\n" for line in _lines(status))


def _lines(status: Status) -> Iterator[str]:
    pin = status.pin
    yield f"series {status.series} on vLLM {pin.version} ({_commit(pin)}): {_age(pin)}"
    for topic in status.topics:
        yield ""
        needs = f"  needs {', '.join(topic.needs)}" if topic.needs else ""
        yield f"{topic.name}: {topic.title}  [{_where(topic)}]{needs}"
        yield f"  {_size(topic)}"
        for patch in topic.patches:
            own = f"  {patch.overlay_files} new" if patch.overlay_files else ""
            yield f"  {patch.file[:4]} {patch.subject}  +{patch.added} −{patch.removed}{own}"
    yield from _side_by_side(status.lines)
    yield ""
    for name, lines in _sections(status):
        shown = [line for line, _ in lines[:_MOST]] or ["none yet"]
        shown += [f"… and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
        for number, line in enumerate(shown):
            yield f"{name if number == 0 else '':<10} {line}"


def _side_by_side(topics: Sequence[SharedTopic]) -> Iterator[str]:
    """A table of all lines' topics, and the reasons below it."""
    if not topics:
        return
    rows = [("topics by line", *topics[0].on)]
    rows += [(topic.name, *map(_cell, topic.on.values())) for topic in topics]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield ""
    for row in rows:
        yield "  ".join(
            f"{word:<{width}}" for word, width in zip(row, widths, strict=True)
        ).rstrip()
    said = [(topic.name, reason) for topic in topics if (reason := _reason(topic))]
    if said:
        yield ""
    yield from (f"{name}: {reason}" for name, reason in said)


# -- HTML -----------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; vertical-align: top;
         border-bottom: 1px solid #8884 }
code { font-size: .92em } .dim { opacity: .65 } .bad { color: #c33; font-weight: 600 }
"""


def as_html(status: Status) -> str:
    """One page: no script, nothing loaded from elsewhere."""
    pin, series = status.pin, escape(status.series)
    body = [
        f"<h1>Series <code>{series}</code> on vLLM {escape(pin.version)}</h1>",
        f"<p><code>{escape(_commit(pin))}</code>, {escape(_age(pin))}</p>",
        *(_topic(topic) for topic in status.topics),
        _lines_table(status.lines),
        *(_list(name, lines) for name, lines in _sections(status)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Series {series}</title><style>{_STYLE}</style></head>\n<body>"
        + "\n".join(body)
        + "</body></html>\n"
    )


def _topic(topic: TopicStatus) -> str:
    link = escape(topic.upstream)
    where = f'<a href="{link}">{link}</a>' if link.startswith("https://") else link
    needs = f"; needs {escape(', '.join(topic.needs))}" if topic.needs else ""
    rows = [
        (
            f"<code>{escape(p.file[:4])}</code> {escape(p.subject)}",
            f"+{p.added} −{p.removed}",
            str(p.files),
            f"{p.overlay_files} ({p.overlay_lines} lines)",
        )
        for p in topic.patches
    ]
    return (
        f"<h2>{escape(topic.name)}: {escape(topic.title)}</h2>"
        f'<p class="dim">{escape(topic.state)} {where}{needs}</p>'
        + _table(("patch", "lines upstream", "files", "new files"), rows)
    )


def _lines_table(topics: Sequence[SharedTopic]) -> str:
    if not topics:
        return ""
    rows = [
        tuple(map(escape, (topic.name, *map(_cell, topic.on.values()), _reason(topic))))
        for topic in topics
    ]
    head = ("topic", *map(escape, topics[0].on), "what was seen")
    return "<h2>Topics by line</h2>" + _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    top = "".join(f"<th>{word}</th>" for word in head)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _list(name: str, lines: Sequence[tuple[str, bool]]) -> str:
    marks = {True: '<li class="bad">', False: "<li>"}
    items = "".join(f"{marks[bad]}{escape(line)}</li>" for line, bad in lines)
    shown = f"<ul>{items}</ul>" if items else '<p class="dim">none yet</p>'
    return f"<h2>{name.capitalize()}</h2>{shown}"
