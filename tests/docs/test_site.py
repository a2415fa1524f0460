"""The docs as a site: every page is in it, every link leads somewhere, every message is real."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", *PAGES]
PARTS = ("server/ortolan_server", "runtime/ortolan_runtime", "export/ortolan_export")
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
# A code span of one or two backticks; the latter hold single ones.
SPAN = re.compile(r"``((?:.|\n)+?)``(?!`)|`([^`]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_is_in_the_site(page: Path) -> None:
    assert re.search(rf"\b{re.escape(page.name)}$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """To a file of the repository, and to a heading where it names one."""
    text = without_code(page.read_text(encoding="utf-8"))
    for link in LINK.findall(text):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: pip install '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    done = subprocess.run(
        [*command, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},  # an advertisement on stderr
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    html = "".join(file.read_text() for file in tmp_path.rglob("*.html"))
    assert re.findall(r'(?:src|<link [^>]*href)="https?://[^"]+', html) == []


def test_every_message_in_the_troubleshooting_is_one_that_the_code_has() -> None:
    """Word by word, … where something is put in."""
    templates = set(source_templates())
    unknown = [m for m in messages() if not any(m in template for template in templates)]
    assert unknown == []
    assert len(messages()) > 50


def test_every_kind_of_error_is_in_the_troubleshooting() -> None:
    """With one message at least; and every code that a client may get."""
    shown = messages()
    told = {kind for kind, template in raised() if any(m in template for m in shown)}
    assert {kind for kind, _ in raised()} - told == INTERNAL
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    for code in codes():
        assert f"`{code}`" in page, code


# It becomes another before anybody sees it.
INTERNAL = {"EngineBusy"}


def messages() -> list[str]:
    """Return the messages in the first columns of the page's tables."""
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (?:`` (.+?) ``|`([^`]+)`) \| ", page, re.MULTILINE)
    return [collapsed(one or other).strip("… ") for one, other in cells]


def collapsed(text: str) -> str:
    """Return ``text`` with several … in a row as one."""
    return re.sub(r"…+", "…", text)


def source_templates() -> Iterator[str]:
    """Yield every string of the program, with … for what is put in."""
    for tree in trees():
        for node in ast.walk(tree):
            if (text := template(node)) is not None:
                yield text


def raised() -> list[tuple[str, str]]:
    """Return the kinds of errors that are raised with a message, and the message."""
    others = {"InvalidParameter", "EngineBusy", "EngineClosed", "UnsupportedModel"}
    foreign = {*dir(builtins), "ArgumentTypeError"}
    found = []
    for tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            kind = node.func.id
            is_ours = (kind.endswith("Error") and kind not in foreign) or kind in others
            texts = [text for argument in node.args if (text := template(argument))]
            if is_ours and texts:
                found.append((kind, max(texts, key=len)))
    return found


def codes() -> set[str]:
    """Return every code of an error that the server gives."""
    text = "".join(file.read_text() for file in (ROOT / PARTS[0]).rglob("*.py"))
    return set(re.findall(r'\bcode="(\w+)"', text))


@functools.cache
def trees() -> list[ast.Module]:
    """Return the program's modules."""
    files = [file for part in PARTS for file in (ROOT / part).rglob("*.py")]
    return [ast.parse(file.read_text(encoding="utf-8")) for file in files]


def template(node: ast.AST) -> str | None:
    """Return a string's text with … for what is put in, None when the node is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return collapsed(re.sub(r"%[sdr]", "…", node.value))
    if isinstance(node, ast.JoinedStr):
        parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
        return collapsed("".join(map(str, parts)))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return collapsed((template(node.left) or "…") + (template(node.right) or "…"))
    return None


def without_code(text: str) -> str:
    """Return a page without its blocks and spans of code, in which nothing is a link."""
    return SPAN.sub(
        lambda span: "x" * len(span[0]), re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    )


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    if page.suffix != ".md":
        return set()
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return {
        re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.replace("`", ""))).strip("-").lower()
        for heading in HEADING.findall(text)
    }
