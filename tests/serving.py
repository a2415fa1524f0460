"""A server in a process of its own, and what a test asks of it.

Every process is waited for with a deadline and ended by its id.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

_LISTENING = re.compile(r"listening on (https?://\S+|unix:\S+)")
_START_S = 60.0
_REQUEST_S = 60.0

Json = dict[str, Any]


class Server:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: list[str]) -> None:
        self.process = process
        self.url = url
        self.log = log
        self.client = httpx.Client(base_url=url, timeout=_REQUEST_S)

    @property
    def port(self) -> int:
        """Return the port that it listens on."""
        return int(self.url.rpartition(":")[2])

    @property
    def model(self) -> str:
        """Return the served model's name."""
        name: str = self.client.get("/v1/models").json()["data"][0]["id"]
        return name

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """POST ``body`` as JSON, or as it is when it is bytes."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(
            path, content=raw, headers={"content-type": "application/json", **names}
        )

    def complete(self, prompt: Any = "x", *, path: str = "/v1/completions", **fields: Any) -> Json:
        """Return a completion that must succeed, greedy unless told otherwise."""
        response = self.post(path, self.body(prompt, **fields))
        assert response.status_code == 200, response.text
        document: Json = response.json()
        return document

    def text(self, prompt: Any = "x", **fields: Any) -> str:
        """Return the text of the first choice of a completion."""
        text: str = self.complete(prompt, **fields)["choices"][0]["text"]
        return text

    def stream(
        self, prompt: Any = "x", *, path: str = "/v1/completions", **fields: Any
    ) -> list[Json]:
        """Return the chunks of a stream that must end with [DONE]."""
        raw = self.raw_stream(path, self.body(prompt, stream=True, **fields))
        *documents, done = events(raw)
        assert done == "[DONE]", raw[-500:]
        return [json.loads(document) for document in documents]

    def raw_stream(self, path: str, body: Json) -> bytes:
        """Return the bytes of a stream that must begin well."""
        with self.client.stream("POST", path, json=body) as response:
            raw = response.read()
            assert response.status_code == 200, raw
            assert response.headers["content-type"].startswith("text/event-stream")
            return raw

    def refused(self, body: Any, *, path: str = "/v1/completions", status: int = 400) -> Json:
        """Return the error of a request that must be refused with ``status``."""
        response = self.post(path, body)
        assert response.status_code == status, (response.status_code, response.text[:300], body)
        error: Json = response.json()["error"]
        assert error["message"]
        assert error["type"]
        return error

    def body(self, prompt: Any = "x", **fields: Any) -> Json:
        """Return a request body; a field that is ... is left out."""
        body = {"model": self.served, "prompt": prompt, "temperature": 0, **fields}
        return {name: value for name, value in body.items() if value is not ...}

    @property
    def served(self) -> str:
        """Return the served model's name, asked for once."""
        if not hasattr(self, "_served"):
            self._served = self.model
        return self._served

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 30.0) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)


@contextlib.contextmanager
def serving(
    *bundles: Path, options: Json | None = None, headers: Json | None = None, **settings: Any
) -> Iterator[Server]:
    """Give a server of ``bundles`` on a free port; it is ended afterwards.

    ``options`` are the engine's, ``settings`` the server's; ``headers`` go with every request.
    """
    script = Path(__file__).with_name("serve_bundle.py")
    # One thread is enough for any test and leaves the machine to the others.
    checked = {"slots": 8, "threads": 1, **(options or {})}
    command = [sys.executable, str(script), ":".join(map(str, bundles)), json.dumps(checked)]
    process = subprocess.Popen(
        [*command, json.dumps({"port": 0, "grace_s": 5.0, **settings})],
        stderr=subprocess.PIPE,
        text=True,
    )
    log: list[str] = []
    url_found: list[str] = []
    has_started = threading.Event()
    reader = threading.Thread(target=_read, args=(process, log, url_found, has_started))
    reader.start()
    try:
        assert has_started.wait(_START_S), "the server did not start"
        assert url_found, "".join(log)
        server = Server(process, url_found[0], log)
        server.client.headers.update(headers or {})
        yield server
        server.client.close()
    finally:
        process.terminate()
        try:
            process.wait(15.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()


def events(raw: bytes) -> list[str]:
    """Return the data of each event of a stream, without comments."""
    parts = raw.decode().split("\n\n")
    assert parts[-1] == ""
    return [part.removeprefix("data: ") for part in parts[:-1] if not part.startswith(":")]


def joined(chunks: list[Json], index: int = 0) -> str:
    """Return the text that a stream gave to one choice."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["text"] for choice in choices if choice["index"] == index)


def wait_until(condition: Any, timeout_s: float = 10.0) -> None:
    """Wait until ``condition()`` is true; fail after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def _read(
    process: subprocess.Popen[str], log: list[str], url: list[str], started: threading.Event
) -> None:
    assert process.stderr is not None
    with process.stderr:
        for line in process.stderr:
            log.append(line)
            if match := _LISTENING.search(line):
                url.append(match[1])
                started.set()
    started.set()
