"""What becomes of a request before the engine has it."""

from __future__ import annotations

from ortolan_server.prompts import character_count
from ortolan_server.request import CompletionRequest


def test_all_that_is_encoded_counts_towards_a_thread_of_its_own() -> None:
    """Bad words take as long as a prompt of their length."""
    request = CompletionRequest(prompts=("ab", (1, 2, 3)), bad_words=("four", "five5"))
    assert character_count(request) == 2 + 3 + 4 + 5
