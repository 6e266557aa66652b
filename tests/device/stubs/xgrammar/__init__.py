# SPDX-License-Identifier: Apache-2.0
"""Stands for xgrammar (35 MB), of which vLLM names these two classes when it is imported.

No device check uses a grammar.
"""


class CompiledGrammar:
    """Never made here."""


class GrammarMatcher:
    """Never made here."""
