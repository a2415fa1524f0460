"""Lets the docs be read in the repository and as a site: what links out of docs/ is named there.

mkdocs calls this for every page. Links to files of the repository have no place on the site.
"""

from __future__ import annotations

import re

_OUTWARD = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page's text with each link out of docs/ as the path in the repository."""
    return _OUTWARD.sub(_named, markdown)


def _named(link: re.Match[str]) -> str:
    text, path = link.groups()
    return (
        f"`{path}`" if text.strip("`") in (path, path.rpartition("/")[2]) else f"{text} (`{path}`)"
    )
