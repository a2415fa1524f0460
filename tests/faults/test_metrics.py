"""What ``/metrics`` tells, held to what clients got."""

from __future__ import annotations

from figures import figures
from serving import Server, wait_until


def test_tokens_and_times_are_counted(server: Server) -> None:
    """Between two scrapes."""
    before = figures(server)
    server.complete("hello", max_tokens=5, n=2)
    server.stream("hello", max_tokens=7)
    server.refused(server.body("x", n=0))
    after = figures(server)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("ortolan_generated_tokens_total") == 17
    assert grown("ortolan_delivered_tokens_total") == 17
    assert grown("ortolan_time_to_first_token_seconds_count") == 2
    assert 8 <= grown("ortolan_inter_token_seconds_count") <= 14
    assert grown('ortolan_completions_total{ending="complete"}') == 2
    assert grown('ortolan_completions_total{ending="refused"}') == 1
    assert grown('ortolan_requests_total{route="/v1/completions",status="200"}') == 2
    assert grown('ortolan_requests_total{route="/v1/completions",status="400"}') == 1
    assert grown('ortolan_steps_total{kind="decode"}') > 0
    assert grown('ortolan_step_seconds_total{kind="decode",part="model"}') > 0
    assert after["ortolan_slots"] == 2
    assert after["process_open_fds"] > 0


def test_paths_that_are_none_share_one_series(server: Server) -> None:
    """Else clients could make the server hold any number."""
    for path in ("/a", "/b", "/v1/models/x"):
        server.client.get(path)
    names = [name for name in figures(server) if name.startswith("ortolan_requests_total")]
    assert not [name for name in names if '"/a"' in name or '"/b"' in name]
    assert 'ortolan_requests_total{route="other",status="404"}' in names


def test_a_prefix_that_is_reused_is_counted(server: Server) -> None:
    """As cached, not as prefilled."""
    prompt = "hello world" * 40
    server.complete(prompt)
    before = figures(server)["ortolan_cached_prompt_tokens_total"]
    server.complete(prompt)
    wait_until(lambda: figures(server)["ortolan_cached_prompt_tokens_total"] > before)
