"""The tool-owned bare repository in which bases and series are kept."""

from __future__ import annotations

from ci.git import Git
from ci.layout import Layout

# Highest in precedence, so that no attribute of vLLM's tree or of a user turns
# line ends, expands keywords or picks a diff driver.
ATTRIBUTES = b"* -text !eol !ident !filter !working-tree-encoding !diff !merge !whitespace\n"


def open_store(layout: Layout) -> Git:
    """The store, made if it is not there."""
    store = Git(layout.store)
    if not (layout.store / "HEAD").is_file():
        layout.store.mkdir(parents=True, exist_ok=True)
        store.run("init", "--quiet", "--bare", "--template=", cwd=layout.build)
    attributes = layout.store / "info" / "attributes"
    if not attributes.is_file() or attributes.read_bytes() != ATTRIBUTES:
        attributes.parent.mkdir(exist_ok=True)
        attributes.write_bytes(ATTRIBUTES)
    return store
