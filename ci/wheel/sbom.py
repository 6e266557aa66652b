"""The bill of materials inside the wheel (CycloneDX 1.6, where PEP 770 puts it).

It names what the wheel was made of: the pinned sources, every patch with its
hash and its upstream PR, every file that a patch adds, and the wheel that the
compiled libraries came from.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from ci.core.project import project
from ci.pinned.pin import Pin
from ci.wheel.identity import PatchIdentity, WheelIdentity

FILE = f"sboms/{project().label}-series.cdx.json"
"""Its name inside dist-info."""

_NAMESPACE = uuid.UUID("5f0c1b9e-5a86-5d3c-9f0e-3a1c2f0d7b11")


def render(wheel: WheelIdentity, pin: Pin, timestamp: int) -> bytes:
    """The document; the same series gives the same bytes."""
    series, precompiled = wheel.identity, wheel.precompiled
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, f'{wheel.version} {wheel.tree}')}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(timestamp)),
            "component": {
                **_package("built-wheel", "vllm", wheel.version),
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "properties": _properties(
                    series=series.id, tree=wheel.tree, variant=wheel.variant.value
                ),
                "pedigree": {
                    "ancestors": [_pinned(pin)],
                    "patches": [_patch(patch) for patch in series.patches],
                },
            },
        },
        "components": [
            {
                **_package("precompiled-wheel", precompiled.project, pin.version),
                "description": "where the compiled libraries come from, unchanged",
                "hashes": _sha256(precompiled.sha256),
                "properties": _properties(file=precompiled.file),
            },
            *(_patch_file(patch) for patch in series.patches),
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=True).encode("ascii") + b"\n"


def _pinned(pin: Pin) -> dict[str, Any]:
    """The sources that the wheel descends from."""
    made_from = f"commit {pin.commit}" if pin.commit else "its commit not known"
    return {
        **_package("pinned-sources", "vllm", pin.version),
        "hashes": _sha256(pin.sdist.sha256),
        "externalReferences": [
            {"type": "vcs", "url": pin.repository, "comment": f"{pin.tag}, {made_from}"}
        ],
        "properties": _properties(commit=pin.commit, tree=pin.base_tree, sdist=pin.sdist.file),
    }


def _patch(patch: PatchIdentity) -> dict[str, Any]:
    """How the wheel differs from these sources, and where that is upstream."""
    entry: dict[str, Any] = {"type": "unofficial", "diff": {"url": f"patches/{patch.file}"}}
    if patch.upstream:
        issue = {"type": "enhancement", "name": patch.subject or patch.file}
        entry["resolves"] = [{**issue, "references": [patch.upstream]}]
    return entry


def _patch_file(patch: PatchIdentity) -> dict[str, Any]:
    """A patch with its hash, and below it the files that it adds."""
    component: dict[str, Any] = {
        **_file(f"patch:{patch.file}", f"patches/{patch.file}", patch.sha256),
        "description": patch.subject or patch.file,
        "properties": _properties(topic=patch.topic, upstream=patch.upstream or "not submitted"),
    }
    if patch.upstream:
        component["externalReferences"] = [{"type": "vcs", "url": patch.upstream}]
    if patch.overlay:
        component["components"] = [
            _file(f"overlay:{path}", path, sha256) for path, sha256 in sorted(patch.overlay.items())
        ]
    return component


def _package(ref: str, name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
    return {"type": "library", "bom-ref": ref, "name": name, "version": version, "purl": purl}


def _file(ref: str, name: str, sha256: str) -> dict[str, Any]:
    return {"type": "file", "bom-ref": ref, "name": name, "hashes": _sha256(sha256)}


def _sha256(value: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": value}]


def _properties(**values: str) -> list[dict[str, str]]:
    return [
        {"name": f"{project().label}-series:{name}", "value": value}
        for name, value in values.items()
    ]
