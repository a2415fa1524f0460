"""Installs a packed archive and serves from it, in a network namespace that has nothing but itself.

    unshare --net python offline_session.py UNPACKED PREFIX

Prints what happened as JSON. It is run with the interpreter that the archive is for, and imports
nothing but the standard library.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_START_S = 60.0


def main(unpacked: Path, prefix: Path) -> dict[str, Any]:
    """Install, serve, ask and end."""
    set_loopback_up()
    assert not can_reach_out()
    install = [str(unpacked / "install"), str(prefix)]
    environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "HOME": str(prefix)}
    started = time.monotonic()
    done = subprocess.run(install, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    again = subprocess.run(install, env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    return {
        "said": done.stdout,
        "install_s": round((time.monotonic() - started) / 2, 1),
        "packages": packages(prefix),
        "wheel": wheel_again(prefix, environment),
        **serve(prefix, environment),
    }


def set_loopback_up() -> None:
    """A new namespace has a loopback interface that is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", _IFF_UP, b""))


def can_reach_out() -> bool:
    """Return whether there is a way to any other machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of the addresses that nobody has
        except OSError:
            return False
    return True


def packages(prefix: Path) -> list[str]:
    """Return the names of what was installed."""
    return sorted(path.name.split("-")[0] for path in prefix.rglob("*.dist-info"))


def wheel_again(prefix: Path, environment: dict[str, str]) -> str:
    """Return the path of the wheel that the installed program makes of itself."""
    code = (
        "import sys; from pathlib import Path;"
        "from ortolan_server.packing.own_wheel import write_own_wheel;"
        "print(write_own_wheel(Path(sys.argv[1])))"
    )
    command = [str(prefix / "bin" / "python"), "-c", code, str(prefix)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def serve(prefix: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Serve as a unit of systemd would, ask once, and end."""
    address = prefix / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(_START_S)
        command = [str(prefix / "bin" / "ortolan"), "serve", str(prefix / "bundle"), "--offline"]
        started = time.monotonic()
        process = subprocess.Popen(
            command, env={**environment, "NOTIFY_SOCKET": str(address)}, stderr=subprocess.PIPE
        )
        try:
            states = [systemd.recv(64).decode()]
            start_s = time.monotonic() - started
            answer = ask()
            process.send_signal(signal.SIGTERM)
            states.append(systemd.recv(64).decode())
            code = process.wait(30)
        finally:
            process.kill()
            process.wait()
    return {"states": states, "start_s": round(start_s, 2), "answer": answer, "code": code}


def ask() -> Any:
    """Return the answer to one completion."""
    with urllib.request.urlopen("http://127.0.0.1:8000/v1/models") as response:
        model = json.load(response)["data"][0]["id"]
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(
        "http://127.0.0.1:8000/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


if __name__ == "__main__":
    json.dump(main(*map(Path, sys.argv[1:])), sys.stdout)
