"""Stands for the installed command `ortolan`; `serve` takes any port and ends once it listens."""

from __future__ import annotations

import subprocess
import sys

_COMMAND = [sys.executable, "-m", "ortolan_server"]


def main(argv: list[str]) -> int:
    """Run the command and return its exit code."""
    if argv[:1] != ["serve"]:
        return subprocess.run([*_COMMAND, *argv]).returncode
    command = [*_COMMAND, *argv, *([] if "--port" in argv else ["--port", "0"])]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.write(line)
            if "listening on" in line:
                process.terminate()
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
