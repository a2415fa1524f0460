"""Measures how long a server takes from its start to the first token over HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Mapping

from peers.process import Command, ProgramFailed, ending, started

_TIMEOUT_S = 60.0
_POLL_S = 0.005
_BODY = json.dumps(
    {
        "model": "peers",
        "prompt": "The capital of France is",
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
).encode()


def seconds_to_first_token(
    command: Command, *, environment: Mapping[str, str] | None = None
) -> float:
    """Start a server and return the seconds until it sent text; then end it.

    ``command`` ends with the option that takes the port. Raises ProgramFailed.
    """
    port = _free_port()
    begun = time.perf_counter()
    with started([*command, str(port)], environment=environment) as process:
        while time.perf_counter() - begun < _TIMEOUT_S:
            if process.poll() is not None:
                raise ProgramFailed(f"{command[0]} {ending(process.returncode)} at its start")
            if _is_served(port):
                return time.perf_counter() - begun
            time.sleep(_POLL_S)
    raise ProgramFailed(f"{command[0]} sent no token within {_TIMEOUT_S:g} s")


def first_text(event: bytes) -> str:
    """Return the text in one line of a stream of events, which may have none."""
    if not event.startswith(b"data: {"):
        return ""
    choices = json.loads(event.removeprefix(b"data: "))["choices"]
    return "".join(choice["text"] for choice in choices)


def _is_served(port: int) -> bool:
    """Ask for a completion; return whether text came, which it does not before the server is up."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", "/v1/completions", _BODY, {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            return False
        return any(first_text(line) for line in response)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
