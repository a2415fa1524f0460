"""Lets ``python -m ortolan_server`` and the ``ortolan`` command start the same program."""

from __future__ import annotations

import sys

from ortolan_server.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
