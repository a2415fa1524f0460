"""Runs the server in this process: listens, serves, and ends in an orderly way.

The first SIGTERM or SIGINT stops taking requests and lets running ones finish within the grace; a
second one ends at once. When the engine's thread dies, requests get their error and the process
ends with exit code 70, so that whatever supervises it starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator, Sequence

import uvicorn

from ortolan_server.app import Application, create_app
from ortolan_server.errors import unavailable
from ortolan_server.guard import guarded_protocol
from ortolan_server.listening import is_local, url_of
from ortolan_server.models import Load, NamedEngine
from ortolan_server.sd_notify import READY, STOPPING, Notify, notifier
from ortolan_server.settings import ServerSettings

logger = logging.getLogger("ortolan.server")

EXIT_ENGINE_DIED = 70

_POLL_S = 0.1
_LAST_WORDS_S = 2.0  # for error responses to reach their clients


def run_server(
    engines: Sequence[NamedEngine],
    settings: ServerSettings,
    listener: socket.socket,
    load: Load | None = None,
    notify: Notify | None = None,
) -> int:
    """Serve until told to stop; return the process's exit code.

    ``engines`` are closed at the end; ``load`` opens bundles that shall take their place;
    ``notify`` hears when requests are taken and when no more are. Raises what ``create_app`` does.
    """
    return asyncio.run(_serve(engines, settings, listener, load, notify or notifier({})))


async def _serve(
    engines: Sequence[NamedEngine],
    settings: ServerSettings,
    listener: socket.socket,
    load: Load | None,
    notify: Notify,
) -> int:
    with contextlib.closing(
        create_app(engines, settings, is_local=is_local(listener), load=load)
    ) as app:
        server = _Server(_config(app, settings))
        host = _Host(app, server, settings.grace_s, notify)
        with host.handling_signals():
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            logger.info("listening on %s", url_of(listener, settings))
            notify(READY)
            ending = asyncio.create_task(host.wait_for_the_end())
            await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            await serving
            ending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ending  # what went wrong in it is raised here
    return EXIT_ENGINE_DIED if host.has_engine_died else 0


def _config(app: Application, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=guarded_protocol(settings),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # its warnings are for every byte of nonsense that is sent
        access_log=False,
        server_header=False,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        # Declared as an int, and given to a timer of the loop, which takes fractions.
        timeout_keep_alive=settings.idle_timeout_s,  # type: ignore[arg-type]
        timeout_graceful_shutdown=int(_LAST_WORDS_S),
    )


class _Server(uvicorn.Server):
    """uvicorn's server, its signals left to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Host:
    """Decides when the server ends."""

    def __init__(
        self, app: Application, server: uvicorn.Server, grace_s: float, notify: Notify
    ) -> None:
        self._app = app
        self._server = server
        self._grace_s = grace_s
        self._notify = notify
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self.has_engine_died = False

    @contextlib.contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Take SIGTERM and SIGINT as orders to end."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._order_end)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def wait_for_the_end(self) -> None:
        """Return when the server has nothing left to do."""
        while not self._stop.is_set():
            await self._pause(self._stop)
            if not self._app.models.are_alive:
                await self._report_death()
                return
        await self._drain()

    def _order_end(self) -> None:
        if self._stop.is_set():
            logger.info("ending at once")
            self._stop_now.set()
            self._server.force_exit = True
        self._stop.set()

    async def _report_death(self) -> None:
        """Let each request have its error, then end."""
        self.has_engine_died = True
        logger.error("the engine's thread has died; ending with exit code %d", EXIT_ENGINE_DIED)
        self._app.models.fail_all(unavailable("the engine has failed"))
        await self._wait_until_idle(_LAST_WORDS_S)

    async def _drain(self) -> None:
        self._app.lifecycle.is_draining = True
        self._notify(STOPPING)
        running = self._app.lifecycle.in_flight
        logger.info("ending: %d requests have %g s to finish", running, self._grace_s)
        await self._wait_until_idle(self._grace_s)
        if self._app.lifecycle.in_flight:
            self._app.models.fail_all(unavailable("the server is shutting down"))
            await self._wait_until_idle(_LAST_WORDS_S)
        # What is left has not sent its body yet, or does not read: nobody waits for that twice.
        self._server.force_exit = self._app.lifecycle.in_flight > 0

    async def _wait_until_idle(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._app.lifecycle.in_flight and loop.time() < deadline:
            if self._stop_now.is_set() or not self._app.models.are_alive:
                return
            await self._pause(self._stop_now)

    async def _pause(self, until: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(until.wait(), _POLL_S)
