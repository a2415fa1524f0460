"""Every command in README.md and docs/ is run, or is named with the reason why it cannot be."""

from __future__ import annotations

import pytest
from blocks import COMMANDS, NOT_RUN, OTHERS, Block, RunBlock, blocks, commands

RUN = [block for block in commands() if block.name not in NOT_RUN]


def test_what_is_not_run_is_there() -> None:
    """A command that was changed or removed has no reason left."""
    assert set(NOT_RUN) <= {block.name for block in commands()}


def test_no_command_hides_behind_another_language() -> None:
    assert {block.language for block in blocks()} <= {*COMMANDS, *OTHERS}


def test_two_blocks_of_a_page_begin_differently() -> None:
    """Else one reason would excuse both."""
    names = [block.name for block in commands() if block.name in NOT_RUN]
    assert len(names) == len(set(names))


@pytest.mark.clients
@pytest.mark.parametrize("block", RUN, ids=lambda block: block.name)
def test_a_command_does_what_the_docs_say(block: Block, run_block: RunBlock) -> None:
    """It ends without an error."""
    run_block(block)


@pytest.mark.clients
def test_a_command_that_fails_is_noticed(run_block: RunBlock) -> None:
    """One that exits with 1, and a request that is refused."""
    for text in ("ortolan inspect ./nothing", "curl http://127.0.0.1:8000/nothing"):
        with pytest.raises(AssertionError):
            run_block(Block("here", "sh", text))
