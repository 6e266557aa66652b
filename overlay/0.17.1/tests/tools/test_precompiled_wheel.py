# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What a VLLM_USE_PRECOMPILED build takes out of an existing wheel.

setup.py cannot be imported (it runs the build), so its class is compiled from
the syntax tree.
"""

import ast
import os
import shutil
import zipfile
from pathlib import Path

import pytest
import regex as re

SETUP_PY = Path(__file__).parents[2] / "setup.py"


@pytest.fixture(scope="module")
def setup_tree() -> ast.Module:
    return ast.parse(SETUP_PY.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel_utils(setup_tree):
    node = next(
        node
        for node in setup_tree.body
        if isinstance(node, ast.ClassDef) and node.name == "precompiled_wheel_utils"
    )
    module = ast.Module(body=[node], type_ignores=[])
    namespace = {"os": os, "re": re, "shutil": shutil}
    exec(compile(module, str(SETUP_PY), "exec"), namespace)
    return namespace["precompiled_wheel_utils"]


def required_libraries(tree: ast.Module) -> set[str]:
    """The library of every extension that some platform cannot do without."""
    libraries = set()
    for node in ast.walk(tree):
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "CMakeExtension"
        ):
            continue
        arguments = {keyword.arg: keyword.value for keyword in node.keywords}
        optional = arguments.get("optional")
        if optional is None or ast.literal_eval(optional) is False:
            name = ast.literal_eval(arguments["name"])
            libraries.add(name.replace(".", "/") + ".abi3.so")
    return libraries


def extract(wheel_utils, tmp_path, monkeypatch, members: dict[str, bytes]):
    wheel = tmp_path / "vllm-0-cp38-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    source = tmp_path / "source"
    source.mkdir()
    monkeypatch.chdir(source)
    package_data = wheel_utils.extract_precompiled_and_patch_package(str(wheel), None)
    return source, package_data


def test_every_required_library_is_extracted(
    setup_tree, wheel_utils, tmp_path, monkeypatch
):
    libraries = required_libraries(setup_tree)
    # The CUDA build's and both of the x86 CPU build's.
    assert {
        "vllm/_C.abi3.so",
        "vllm/_C_AVX2.abi3.so",
        "vllm/_moe_C.abi3.so",
    } <= libraries

    members = {name: name.encode() for name in libraries}
    source, package_data = extract(wheel_utils, tmp_path, monkeypatch, members)

    extracted = {
        path.relative_to(source).as_posix(): path.read_bytes()
        for path in source.rglob("*.so")
    }
    assert extracted == members
    packaged = {
        f"{package.replace('.', '/')}/{file}"
        for package, files in package_data.items()
        for file in files
    }
    assert packaged == libraries


def test_python_sources_are_not_extracted(wheel_utils, tmp_path, monkeypatch):
    members = {
        "vllm/_C.abi3.so": b"library",
        "vllm/version.py": b"from the wheel",
        "vllm/platforms/cpu.py": b"from the wheel",
    }
    source, package_data = extract(wheel_utils, tmp_path, monkeypatch, members)

    assert [p.name for p in source.rglob("*") if p.is_file()] == ["_C.abi3.so"]
    assert package_data == {"vllm": ["_C.abi3.so"]}
