"""Runs the exporter alone: ``python -m ortolan_export SOURCE OUT``."""

from __future__ import annotations

import sys

from ortolan_export.cli import main

sys.exit(main(sys.argv[1:]))
