"""Every command in README.md and docs/ is run, or is named with the reason why it cannot be."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from blocks import COMMANDS, NOT_RUN, OTHERS, ROOT, Block, RunBlock, blocks, commands

from ortolan_server.cli import parser
from ortolan_server.commands.registry import find_command

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_command_in_a_sentence_exists_and_has_its_options(page: Path) -> None:
    """As `ortolan keys add NAME --kind admin`; the program's own help is asked."""
    for span in SPAN.findall(page.read_text(encoding="utf-8")):
        words = span.split()
        if words[:1] != ["ortolan"] or len(words) < 2 or not words[1].isalpha():
            continue
        if words[1].isupper():  # a placeholder
            continue
        command = find_command(words[1])
        assert command is not None, span
        known = options_of(parser(command))
        for word in words:
            option = word.partition("=")[0].rstrip(".,;")
            assert not option.startswith("--") or option in known, span


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options of a command and of what it has below it."""
    found = set()
    for action in parser._actions:
        found |= set(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                found |= options_of(one)
    return found
