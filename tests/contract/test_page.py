"""The page as the server sends it: whole, of its own files alone, and under a policy that holds."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

import ortolan_server
from serving import Server

FOLDER = Path(ortolan_server.__file__).parent / "pages"
FILES = sorted(file.name for file in FOLDER.iterdir())
SCRIPTS = [name for name in FILES if name.endswith(".js")]
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
MOST_LINES = 400


def fetch(server: Server, name: str, **headers: str) -> httpx.Response:
    """Return the server's answer for a file of the page."""
    path = "/" if name == "index.html" else f"/page/{name}"
    return server.client.get(path, headers={k.replace("_", "-"): v for k, v in headers.items()})


def read(name: str) -> str:
    """Return a file of the page."""
    return (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_sent_as_it_is(plain: Server, name: str) -> None:
    answer = fetch(plain, name)
    assert answer.status_code == 200
    assert answer.content == (FOLDER / name).read_bytes()
    assert answer.headers["content-type"] == TYPES[name.rpartition(".")[2]]
    assert answer.headers["content-length"] == str(len(answer.content))
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_copy_that_is_current_is_not_sent_again(plain: Server) -> None:
    etag = fetch(plain, "page.js").headers["etag"]
    for current in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        answer = fetch(plain, "page.js", if_none_match=current)
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == etag
    assert fetch(plain, "page.js", if_none_match='"x"').status_code == 200


def test_the_head_of_a_file_is_its_answer_without_the_body(plain: Server) -> None:
    whole, head = plain.client.get("/"), plain.client.head("/")
    assert (head.status_code, head.content) == (200, b"")
    different = {"date", "x-request-id"}
    assert {k: v for k, v in head.headers.items() if k not in different} == {
        k: v for k, v in whole.headers.items() if k not in different
    }


def test_the_page_takes_no_other_method_and_has_no_other_file(plain: Server) -> None:
    assert plain.post("/", {}).status_code == 405
    assert plain.client.get("/page/nothing.js").status_code == 404
    assert plain.client.get("/page/").status_code == 404


def test_the_policy_lets_in_nothing_but_the_servers_own_files(plain: Server) -> None:
    policy = plain.client.get("/").headers["content-security-policy"]
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    assert directives["default-src"] == "'none'"
    assert {directives[f"{kind}-src"] for kind in ("script", "style", "img", "connect")} == {
        "'self'"
    }
    assert "unsafe" not in policy
    assert "*" not in policy


def test_the_page_can_be_switched_off(narrow: Server) -> None:
    assert narrow.client.get("/").status_code == 404
    assert narrow.client.get("/page/page.js").status_code == 404


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_another_host(name: str) -> None:
    """An SVG's namespace is a name that nobody fetches."""
    text = read(name).replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:)?//\w[\w.-]*\.\w+", text) == []
    assert "@import" not in text


def test_every_file_is_used_and_every_file_that_is_used_exists() -> None:
    named = set(re.findall(r'(?:src|href)="page/([\w.]+)"', read("index.html")))
    for script in SCRIPTS:
        named |= set(re.findall(r'from "\./([\w.]+)"', read(script)))
    assert named | {"index.html"} == set(FILES)


def test_the_markup_has_no_script_and_no_style_of_its_own() -> None:
    """The policy would refuse them."""
    html = read("index.html")
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", html) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_makes_markup_or_code_of_text(name: str) -> None:
    """What a model says must stay text."""
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    assert re.findall(forbidden, read(name)) == []


def test_the_key_is_kept_in_the_tab_alone() -> None:
    scripts = "".join(read(name) for name in SCRIPTS)
    assert "localStorage" not in scripts
    assert "indexedDB" not in scripts
    assert "document.cookie" not in scripts


@pytest.mark.parametrize("name", FILES)
def test_no_file_is_too_long(name: str) -> None:
    assert len(read(name).splitlines()) <= MOST_LINES
