# SPDX-License-Identifier: Apache-2.0
"""Chats whose answers come from the text that they hold."""

from __future__ import annotations

REPORT = (
    "The harbour office of Lindmouth opened a new ferry line on the second of May. "
    "The boat is called Grey Heron and carries two hundred passengers and thirty bicycles. "
    "It leaves the old pier at seven in the morning and returns at nine in the evening. "
    "Tickets cost four coins for adults and two coins for children. "
    "The office says that the line will run until the end of October."
)
INVENTORY = (
    "Shelf one holds six blue lamps, four green lamps and nine brass hooks. "
    "Shelf two holds twelve wool blankets, three oak chairs and one iron stove. "
    "Shelf three holds five glass jars, eight copper pans and two clay pots."
)
CODE = (
    "def total(items):\n    result = 0\n    for item in items:\n"
    "        result = result + item.price * item.count\n    return result\n"
)
CHATS = {
    "copy": f"Repeat the following text word for word.\n\n{REPORT}",
    "rewrite": f"Rewrite this function with the name `total` changed to `amount`.\n\n{CODE}",
    "list": f"List every item on the shelves, one per line, as in the text.\n\n{INVENTORY}",
    "summarise": f"Summarise the following report in two sentences.\n\n{REPORT}",
}


def chat(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]
