"""Tells systemd how the server stands, for units of ``Type=notify``.

The protocol is that of sd_notify(3): one datagram for each state.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping

logger = logging.getLogger("ortolan.server")

READY = "READY=1"
STOPPING = "STOPPING=1"

Notify = Callable[[str], None]


def notifier(environment: Mapping[str, str]) -> Notify:
    """Return a function that sends a state to ``NOTIFY_SOCKET``, or does nothing without one."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return lambda state: None
    if address.startswith("@"):  # Linux's abstract namespace
        address = f"\0{address[1:]}"

    def notify(state: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto(state.encode(), address)
        except OSError as exc:
            logger.warning("cannot tell systemd %s: %s", state, exc.strerror)

    return notify
