"""The arrows between the three parts, and the sizes of files and functions.

    ortolan_server ──▶ ortolan_runtime ◀── ortolan_export

The server calls the exporter inside functions alone, so that serving needs none of its packages.
The exporter takes the bundle format at its modules' level, and more of the runtime only inside
functions, to verify what it wrote. The runtime knows neither.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "export": "ortolan_export",
    "runtime": "ortolan_runtime",
    "server": "ortolan_server",
}
MODEL_LIBRARIES = {"torch", "transformers", "optimum", "onnx", "onnx_ir", "gguf", "safetensors"}
WEB_LIBRARIES = {"starlette", "uvicorn", "httptools"}
BUNDLE_FORMAT = {
    "ortolan_runtime.bundle",
    "ortolan_runtime.errors",
    "ortolan_runtime.version",
}
MOST_LINES = 400
MOST_LINES_OF_A_FUNCTION = 60
# Path from the root: why it is longer.
LONGER_FILES: dict[str, str] = {}


@dataclass(frozen=True)
class Import:
    """One imported module, and whether importing its file imports it."""

    file: str
    module: str
    is_lazy: bool

    @property
    def package(self) -> str:
        return self.module.split(".")[0]


def imports_in(source: str, file: str) -> list[Import]:
    """Return the absolute imports of a source; ``from a.b import c`` counts as ``a.b``."""
    found: list[Import] = []

    def visit(node: ast.AST, is_lazy: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(file, alias.name, is_lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append(Import(file, node.module, is_lazy))
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, is_lazy or is_function)

    visit(ast.parse(source), False)
    return found


def files_of(folder: str) -> list[Path]:
    """Return the folder's modules, and the scripts, whose names have no suffix."""
    files = (ROOT / folder).rglob("*")
    return sorted(file for file in files if file.suffix in ("", ".py") and file.is_file())


def imports_of(part: str) -> list[Import]:
    files = files_of(f"{part}/{PACKAGES[part]}")
    assert files, f"{part} has no files"
    return [
        found
        for file in files
        for found in imports_in(file.read_text(), str(file.relative_to(ROOT)))
    ]


def test_the_runtime_knows_neither_the_exporter_nor_the_server() -> None:
    others = {"ortolan_export", "ortolan_server"}
    assert [i for i in imports_of("runtime") if i.package in others] == []


def test_the_runtime_needs_no_library_of_the_others() -> None:
    foreign = MODEL_LIBRARIES | WEB_LIBRARIES
    assert [i for i in imports_of("runtime") if i.package in foreign] == []


def test_the_exporter_takes_the_bundle_format_alone_until_it_verifies() -> None:
    wrong = [
        i
        for i in imports_of("export")
        if i.package == "ortolan_runtime" and not i.is_lazy and i.module not in BUNDLE_FORMAT
    ]
    assert wrong == []


def test_the_exporter_knows_no_server() -> None:
    foreign = WEB_LIBRARIES | {"ortolan_server"}
    assert [i for i in imports_of("export") if i.package in foreign] == []


def test_the_server_calls_the_exporter_inside_functions_alone() -> None:
    eager = [i for i in imports_of("server") if i.package == "ortolan_export" and not i.is_lazy]
    assert eager == []


def test_the_server_needs_no_library_of_the_exporter() -> None:
    assert [i for i in imports_of("server") if i.package in MODEL_LIBRARIES] == []


def test_torch_and_its_like_are_loaded_by_exporters_when_they_are_called() -> None:
    heavy = {"torch", "transformers", "optimum"}
    assert [i for i in imports_of("export") if i.package in heavy and not i.is_lazy] == []


@pytest.mark.parametrize("folder", [*PACKAGES, "tests", "scripts"])
def test_no_file_is_longer_than_400_lines_without_a_reason(folder: str) -> None:
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files_of(folder)
    }
    longer = {name for name, length in lengths.items() if length > MOST_LINES}
    assert longer <= set(LONGER_FILES)


def functions_of(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("part", PACKAGES)
def test_no_function_is_longer_than_60_lines(part: str) -> None:
    longer = [
        f"{file.relative_to(ROOT)}:{function.lineno} {function.name}"
        for file in files_of(part)
        for function in functions_of(file)
        if (function.end_lineno or 0) - function.lineno + 1 > MOST_LINES_OF_A_FUNCTION
    ]
    assert longer == []


def test_imports_are_found_wherever_they_hide() -> None:
    source = (
        "import torch.nn, os\n"
        "if True:\n"
        "    from ortolan_runtime.bundle import Manifest\n"
        "class A:\n"
        "    import gguf\n"
        "    async def f(self):\n"
        "        from ortolan_export import native\n"
        "from . import sibling\n"
    )
    assert [(i.module, i.is_lazy) for i in imports_in(source, "x.py")] == [
        ("torch.nn", False),
        ("os", False),
        ("ortolan_runtime.bundle", False),
        ("gguf", False),
        ("ortolan_export", True),
    ]
