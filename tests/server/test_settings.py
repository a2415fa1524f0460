"""What a server refuses to begin with: settings, and places to listen."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ortolan_runtime.errors import InvalidParameter
from ortolan_server.listening import ListenError, listen
from ortolan_server.settings import ServerSettings


def test_a_port_in_use_is_one_line() -> None:
    """Before any model is loaded."""
    with listen(ServerSettings(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1 port {port}: Address"):
            listen(ServerSettings(port=port))


def test_a_host_that_is_none_is_one_line() -> None:
    """Names of its own that nobody resolves."""
    with pytest.raises(ListenError, match="check --host"):
        listen(ServerSettings(host="no such host", port=0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 70_000},
        {"heartbeat_s": 0},
        {"heartbeat_s": math.nan},
        {"idle_timeout_s": math.inf},
        {"grace_s": math.inf},
        {"grace_s": -1},
        {"max_body_bytes": 0},
        {"api_key": " "},
        {"model_name": ""},
    ],
)
def test_settings_outside_their_range_are_refused(wrong: dict[str, Any]) -> None:
    """By name."""
    with pytest.raises(Exception, match=f"`{next(iter(wrong))}` must"):
        ServerSettings(**wrong)


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/", "https://a/b"])
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(InvalidParameter, match="`cors_origin` must be as https://example.org"):
        ServerSettings(cors_origins=(origin,))
    ServerSettings(cors_origins=("*", "https://example.org", "http://localhost:3000"))


@pytest.mark.parametrize("host", ["http://box", "box:8000"])
def test_a_host_that_no_header_can_name_is_refused(host: str) -> None:
    """Ports are not compared."""
    with pytest.raises(InvalidParameter, match="`allowed_host` must be a name without"):
        ServerSettings(allowed_hosts=(host,))
    ServerSettings(allowed_hosts=("box", "fe80::1"))


def test_an_address_of_another_machine_is_told_of_by_its_option() -> None:
    """192.0.2.0/24 is for documentation: no machine has it."""
    with pytest.raises(ListenError, match="on 192.0.2.1: .*; check --host"):
        listen(ServerSettings(host="192.0.2.1", port=0))
