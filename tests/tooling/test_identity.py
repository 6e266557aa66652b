"""The series' id: what changes it, and that packaging tools leave it alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from packaging.version import Version

from ci.pinned.variant import Variant
from ci.wheel.identity import PatchIdentity, SeriesIdentity

PATCH = PatchIdentity("0001-a.patch", "1" * 64, {"vllm/a.py": "2" * 64}, upstream="")
SERIES = SeriesIdentity("0.17.1", "c" * 40, "d" * 40, (PATCH,))


@pytest.mark.parametrize(
    "other",
    [
        replace(SERIES, commit="0" * 40),
        replace(SERIES, base_tree="0" * 40),
        replace(SERIES, vllm="0.17.2"),
        replace(SERIES, patches=()),
        replace(SERIES, patches=(PATCH, PATCH)),
        replace(SERIES, patches=(replace(PATCH, sha256="0" * 64),)),
        replace(SERIES, patches=(replace(PATCH, overlay={"vllm/a.py": "0" * 64}),)),
        replace(SERIES, patches=(replace(PATCH, overlay={}),)),
    ],
)
def test_every_part_counts(other: SeriesIdentity) -> None:
    assert other.id != SERIES.id


def test_where_a_patch_stands_upstream_does_not_count() -> None:
    patch = replace(PATCH, upstream="https://example.invalid/pull/1", topic="t", subject="s")
    assert replace(SERIES, patches=(patch,)).id == SERIES.id


@pytest.mark.parametrize("variant", list(Variant))
def test_versions_are_in_normal_form(variant: Variant) -> None:
    for number in range(200):
        version = replace(SERIES, commit=f"{number:040x}").version(variant)
        assert str(Version(version)) == version
        assert Version(version) > Version("0.17.1")
        assert ("cpu" in version) == (variant is Variant.CPU)
