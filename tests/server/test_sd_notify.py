"""What systemd is told, over a socket as systemd's own."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import pytest

from ortolan_server.sd_notify import READY, notifier


def received(address: str | bytes, notify_socket: str) -> bytes:
    """Return what arrives at ``address`` when a server with that environment is ready."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(5)
        notifier({"NOTIFY_SOCKET": notify_socket})(READY)
        return systemd.recv(64)


def test_systemd_is_told_through_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    assert received(path, path) == b"READY=1"


def test_systemd_is_told_through_the_abstract_namespace() -> None:
    name = f"ortolan-test-{os.getpid()}"
    assert received(f"\0{name}", f"@{name}") == b"READY=1"


def test_a_socket_that_is_gone_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})(READY)
    assert "cannot tell systemd READY=1" in caplog.text


def test_without_systemd_nobody_is_told() -> None:
    notifier({})(READY)
