"""Servers for the fault suite: real processes, a model that talks until it is stopped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from serving import Server, serving

IMPATIENT = {"header_timeout_s": 0.5, "body_timeout_s": 0.5, "stalled_reader_timeout_s": 0.5}


@pytest.fixture(scope="session")
def strict_edges(babbling_bundle: Path) -> Iterator[Server]:
    """Give a server with small limits and little patience."""
    with serving(
        babbling_bundle, max_body_bytes=32 << 10, max_header_bytes=8 << 10, **IMPATIENT
    ) as server:
        yield server


@pytest.fixture(scope="session")
def server(babbling_bundle: Path) -> Iterator[Server]:
    """Give a server with two slots."""
    with serving(babbling_bundle, options={"slots": 2, "queue_limit": 70}) as server:
        yield server
