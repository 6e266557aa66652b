"""The bill of materials inside the wheel (CycloneDX 1.6, where PEP 770 puts it).

It names what the wheel was made of: the pinned sources, every patch with its
hash and its upstream PR, every file that a patch adds, and the wheel that the
compiled libraries came from.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from ci.identity import PatchIdentity, SeriesIdentity
from ci.pin import Artifact, Pin
from ci.variant import Variant

FILE = "sboms/ngram-series.cdx.json"
"""Its name inside dist-info."""

_NAMESPACE = uuid.UUID("5f0c1b9e-5a86-5d3c-9f0e-3a1c2f0d7b11")


def render(
    identity: SeriesIdentity,
    pin: Pin,
    variant: Variant,
    tree: str,
    precompiled: Artifact,
    timestamp: int,
) -> bytes:
    """The document; the same series gives the same bytes."""
    version = identity.version(variant)
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(timestamp))
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, f'{version} {tree}')}",
        "version": 1,
        "metadata": {
            "timestamp": moment,
            "component": {
                **_package("vllm", version, "built-wheel"),
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "properties": [
                    _property("series", identity.id),
                    _property("tree", tree),
                    _property("variant", variant.value),
                ],
                "pedigree": _pedigree(identity, pin),
            },
        },
        "components": [
            {
                **_package(precompiled.project, pin.version, "precompiled-wheel"),
                "description": "where the compiled libraries come from, unchanged",
                "hashes": [_sha256(precompiled.sha256)],
                "properties": [_property("file", precompiled.file)],
            },
            *_patch_components(identity),
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=True).encode("ascii") + b"\n"


def _package(name: str, version: str, ref: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": ref,
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version.replace('+', '%2B')}",
    }


def _pedigree(identity: SeriesIdentity, pin: Pin) -> dict[str, Any]:
    """What the wheel descends from, and how it differs."""
    ancestor = {
        **_package("vllm", pin.version, "pinned-sources"),
        "hashes": [_sha256(pin.sdist.sha256)],
        "externalReferences": [
            {"type": "vcs", "url": pin.repository, "comment": f"{pin.tag}, commit {pin.commit}"}
        ],
        "properties": [
            _property("commit", pin.commit),
            _property("tree", pin.base_tree),
            _property("sdist", pin.sdist.file),
        ],
    }
    return {
        "ancestors": [ancestor],
        "patches": [_patch(patch) for patch in identity.patches],
    }


def _patch(patch: PatchIdentity) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "unofficial", "diff": {"url": f"patches/{patch.file}"}}
    if patch.upstream:
        entry["resolves"] = [
            {
                "type": "enhancement",
                "name": patch.subject or patch.file,
                "references": [patch.upstream],
            }
        ]
    return entry


def _patch_components(identity: SeriesIdentity) -> Iterator[dict[str, Any]]:
    """Each patch as a file with a hash, and below it the files that it adds."""
    for patch in identity.patches:
        component: dict[str, Any] = {
            "type": "file",
            "bom-ref": f"patch:{patch.file}",
            "name": f"patches/{patch.file}",
            "description": patch.subject or patch.file,
            "hashes": [_sha256(patch.sha256)],
            "properties": [
                _property("topic", patch.topic),
                _property("upstream", patch.upstream or "not submitted"),
            ],
        }
        if patch.upstream:
            component["externalReferences"] = [{"type": "vcs", "url": patch.upstream}]
        if patch.overlay:
            component["components"] = _overlay(patch.overlay)
        yield component


def _overlay(files: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "type": "file",
            "bom-ref": f"overlay:{path}",
            "name": path,
            "hashes": [_sha256(sha256)],
        }
        for path, sha256 in sorted(files.items())
    ]


def _sha256(value: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": value}


def _property(name: str, value: str) -> dict[str, str]:
    return {"name": f"ngram-series:{name}", "value": value}
