"""Paths that are not there."""

from __future__ import annotations

import pytest

from serving import Server


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/v1/v1/completions", "; did you mean '/v1/completions'?"),
        ("/chat/completions", "; did you mean '/v1/chat/completions'?"),
        ("/openai/v1/completions/", "; did you mean '/openai/completions'?"),
        ("/v1/embeddings", ""),
    ],
)
def test_a_path_that_is_not_there_names_the_near_one(plain: Server, path: str, near: str) -> None:
    """As where a base URL has /v1 twice or not at all."""
    answer = plain.client.post(path, json={})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == f"there is no path {path!r}{near}"
