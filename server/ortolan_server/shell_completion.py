"""Scripts that let a shell complete ``ortolan``, made from its parsers.

Each script is complete in itself: nothing of ours runs when the tab key is pressed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

_BASH_HEAD = """\
# Completion of `ortolan` for bash, made by `ortolan completion bash`.
_ortolan() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
    local path= word i=1
    while [ "$i" -lt "$COMP_CWORD" ]; do
        word=${COMP_WORDS[i]}
        case "$path $word" in
"""
_BASH_MIDDLE = """\
        esac
        i=$((i + 1))
    done
    case "$path $prev" in
"""
_BASH_OPTIONS = """\
    esac
    local words= files=
    case "$path" in
"""
_BASH_TAIL = """\
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    case "$files$cur" in
        yes-* | '') ;;
        yes*) COMPREPLY+=($(compgen -f -- "$cur")) ;;
    esac
}
complete -o filenames -F _ortolan ortolan
"""

# A file in fpath is the function's body at its first call; one that is sourced is not.
_ZSH_TAIL = """\
if [ "$funcstack[1]" = "_ortolan" ]; then
    _ortolan "$@"
else
    compdef _ortolan ortolan
fi
"""


class Option(msgspec.Struct, frozen=True):
    """One option: how it is spelt, what it is for, whether it takes a value, and which."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    repeats: bool
    choices: tuple[str, ...]


class Node(msgspec.Struct, frozen=True):
    """One command: the words that lead to it, its options, what may follow it.

    ``commands`` are those below it with what they do, ``words`` what its arguments may be.
    """

    path: tuple[str, ...]
    options: tuple[Option, ...]
    commands: Mapping[str, str]
    words: tuple[str, ...]
    takes_files: bool


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the script for ``shell``, one of SHELLS."""
    return SHELLS[shell](list(_nodes(parser, ())))


def _nodes(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[Node]:
    """Yield a parser's node and those of all commands below it."""
    options, words, below, takes_files = [], list[str](), None, False
    # argparse has no public list of what a parser takes.
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = action
        elif action.option_strings:
            options.append(_option(action))
        else:
            words += map(str, action.choices or ())
            takes_files = takes_files or action.type is Path or action.nargs == "*"
    helps = {} if below is None else {a.dest: a.help or "" for a in below._choices_actions}
    yield Node(path, tuple(options), helps, tuple(words), takes_files)
    for name, child in {} if below is None else below.choices.items():
        yield from _nodes(child, (*path, name))


def _option(action: argparse.Action) -> Option:
    return Option(
        names=tuple(action.option_strings),
        help=(action.help or "").replace("%(default)s", str(action.default)),
        takes_value=action.nargs != 0,
        repeats=isinstance(action, argparse._AppendAction),
        choices=tuple(map(str, action.choices or ())),
    )


def _bash(nodes: list[Node]) -> str:
    lines = [_BASH_HEAD]
    for node in nodes:
        here = " ".join(node.path)
        lines += [
            f"            '{here} {name}') path='{' '.join((*node.path, name))}' ;;\n"
            for name in node.commands
        ]
    lines.append(_BASH_MIDDLE)
    for node in nodes:
        for option in node.options:
            if option.choices:
                cases = "|".join(f"'{' '.join(node.path)} {name}'" for name in option.names)
                choices = " ".join(option.choices)
                reply = f'COMPREPLY=($(compgen -W "{choices}" -- "$cur"))'
                lines.append(f"        {cases}) {reply}; return ;;\n")
    lines.append(_BASH_OPTIONS)
    for node in nodes:
        options = [name for option in node.options for name in option.names]
        words = " ".join([*node.commands, *node.words, *options])
        files = "yes" if node.takes_files or _options_take_files(node) else ""
        lines.append(f"        '{' '.join(node.path)}') words='{words}' files={files} ;;\n")
    return "".join([*lines, _BASH_TAIL])


def _options_take_files(node: Node) -> bool:
    return any(option.takes_value and not option.choices for option in node.options)


def _zsh(nodes: list[Node]) -> str:
    lines = ["#compdef ortolan", "# Completion of `ortolan`, made by `ortolan completion zsh`."]
    for node in nodes:
        lines += [f"{_function(node.path)}() {{", "    local line state curcontext=$curcontext"]
        lines.append("    _arguments -C \\")
        lines += [f"        {_zsh_option(option)} \\" for option in node.options]
        if node.commands:
            lines += ["        '1: :->command' \\", "        '*::argument:->rest'"]
            described = " ".join(
                f"'{name}:{_zsh_text(text)}'" for name, text in node.commands.items()
            )
            lines += [
                "    case $state in",
                f"        command) local -a commands=({described}); _describe command commands ;;",
                "        rest) case $words[1] in",
            ]
            lines += [
                f"            {name}) {_function((*node.path, name))} ;;" for name in node.commands
            ]
            lines += ["        esac ;;", "    esac"]
        else:
            rest = "_files" if node.takes_files else f"({' '.join(node.words)})"
            lines.append(f"        '*: :{rest}'")
        lines.append("}")
    return "\n".join([*lines, _ZSH_TAIL])


def _function(path: tuple[str, ...]) -> str:
    return "_".join(("_ortolan", *path)).replace("-", "_")


def _zsh_option(option: Option) -> str:
    value = ""
    if option.takes_value:
        value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
    text = f"[{_zsh_text(option.help)}]{value}"
    if len(option.names) == 1:
        return f"'{'*' if option.repeats else ''}{option.names[0]}{text}'"
    return f"{{{','.join(option.names)}}}'{text}'"


def _zsh_text(text: str) -> str:
    for character, instead in (("\\", "\\\\"), ("'", "'\\''"), ("[", "\\["), ("]", "\\]")):
        text = text.replace(character, instead)
    return text.replace(":", "\\:")


def _fish(nodes: list[Node]) -> str:
    lines = [
        "# Completion of `ortolan` for fish, made by `ortolan completion fish`.",
        "complete -c ortolan -f",
    ]
    for node in nodes:
        condition = _fish_condition(node)
        for name, text in node.commands.items():
            lines.append(f"complete -c ortolan -n '{condition}' -a {name} -d {_fish_text(text)}")
        for option in node.options:
            lines.append(f"complete -c ortolan -n '{condition}' {_fish_option(option)}")
        if node.words:
            lines.append(f"complete -c ortolan -n '{condition}' -a '{' '.join(node.words)}'")
        if node.takes_files:
            lines.append(f"complete -c ortolan -n '{condition}' -F")
    return "\n".join([*lines, ""])


def _fish_condition(node: Node) -> str:
    """Return what is true where the node's options may come."""
    seen = [f"__fish_seen_subcommand_from {name}" for name in node.path]
    if node.commands:
        seen.append(f"not __fish_seen_subcommand_from {' '.join(node.commands)}")
    return "; and ".join(seen)


def _fish_option(option: Option) -> str:
    parts = [
        f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names
    ]
    if option.choices:
        parts.append(f"-x -a '{' '.join(option.choices)}'")
    elif option.takes_value:
        parts.append("-r -F")
    return " ".join([*parts, "-d", _fish_text(option.help)])


def _fish_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SHELLS: Mapping[str, Callable[[list[Node]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
