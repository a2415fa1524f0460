"""Lets ``python -m ortolan_server`` and the ``ortolan`` command start the same program."""

from __future__ import annotations

import sys

from ortolan_server.cli import main as run


def main() -> int:
    """Run the command line of this process."""
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
