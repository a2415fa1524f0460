"""Hypothesis settings and engines for the tests of the runtime."""

from __future__ import annotations

from hypothesis import settings

# The machine's speed is no property of the code, so no deadline; the same examples on every run,
# so that a failure in CI is a failure everywhere.
settings.register_profile("runtime", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("runtime")
