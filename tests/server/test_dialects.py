"""Which dialect answers where."""

from __future__ import annotations

from pathlib import Path

from ortolan_server.dialects.registry import served_dialects
from serving import serving


def test_v1_may_speak_tokensmind_instead(babbling_bundle: Path) -> None:
    """Its own path stays; a stop string tells the two apart."""
    with serving(babbling_bundle, v1_dialect="tokensmind") as server:
        free = server.text("x", max_tokens=8)
        for path in ("/v1/completions", "/tokensmind/v1/completions"):
            assert server.text("x", path=path, max_tokens=8, stop=free[2]).endswith(free[2])
        assert "audio_tokens" in server.complete("x")["usage"]["prompt_tokens_details"]


def test_every_route_belongs_to_one_dialect() -> None:
    """Whatever is at /v1."""
    for name in ("openai", "tokensmind"):
        paths = [dialect.path for dialect in served_dialects(name)]
        assert len(paths) == len(set(paths))
        assert "/v1/completions" in paths
