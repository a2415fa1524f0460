"""Options from the command line, the environment and one file, each with where it came from.

A flag comes before a variable ``ORTOLAN_…``, that before the file, that before the default. Names
are the same everywhere: ``--queue-limit``, ``ORTOLAN_QUEUE_LIMIT``, ``queue-limit`` in the file's
table of the command.
"""

from __future__ import annotations

import argparse
import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ortolan_runtime.errors import OrtolanError
from ortolan_server.commands.registry import configurable_commands

PREFIX = "ORTOLAN_"
FILE_VARIABLE = "ORTOLAN_CONFIG"
# Variables that are no option of a command.
OTHER_VARIABLES = frozenset({FILE_VARIABLE, "ORTOLAN_CACHE", "ORTOLAN_API_KEY"})
DEFAULT = "default"
FLAG = "flag"

_WORDS = {"1": True, "true": True, "yes": True, "on": True}
_WORDS |= {"0": False, "false": False, "no": False, "off": False}
# What Kubernetes puts into every container beside a service of this name.
_OF_KUBERNETES = re.compile(r"ORTOLAN(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_\w+)")
_LINK = re.compile(r"(tcp|udp|sctp)://")


class ConfigurationError(OrtolanError):
    """An option has an unknown name or a value out of its range; the message says where."""


class Setting(msgspec.Struct, frozen=True):
    """One option's value, and its source: ``flag``, a variable, a file's path or ``default``.

    ``value`` is what the command gets, ``said`` what stands for it in a file.
    """

    key: str
    value: Any
    source: str
    said: Any


class Configurable:
    """A command's options that may also come from the environment and from a file.

    Takes the parser when all options are added, adds ``--config``, and keeps the defaults from the
    namespace, so that what is in it was typed.
    """

    def __init__(self, command: str, parser: argparse.ArgumentParser) -> None:
        self._command = command
        # argparse has no public list of what a parser takes.
        actions = [a for a in parser._actions if not isinstance(a, argparse._HelpAction)]
        self._actions = {_key(action): action for action in actions}
        self._defaults = {action.dest: action.default for action in actions}
        for action in actions:
            if action.help is not None:
                action.help = action.help.replace("%(default)s", str(action.default))
            action.default = argparse.SUPPRESS
        parser.add_argument(
            "--config",
            type=Path,
            metavar="FILE",
            help="read options from this file (default: the first of ORTOLAN_CONFIG, "
            "~/.config/ortolan/config.toml and /etc/ortolan/config.toml)",
        )
        parser.set_defaults(configurable=self)

    def settings(
        self, given: argparse.Namespace, environment: Mapping[str, str]
    ) -> dict[str, Setting]:
        """Return the setting of every option by its place in the namespace.

        Raises ConfigurationError.
        """
        found = {
            action.dest: _setting(key, action, self._defaults[action.dest], DEFAULT)
            for key, action in self._actions.items()
        }
        path = given.config or file_of(environment)
        if path is not None:
            found |= self._of_file(path)
        found |= self._of_environment(environment)
        for key, action in self._actions.items():
            if action.dest in given:
                found[action.dest] = _setting(key, action, getattr(given, action.dest), FLAG)
        return found

    def _of_file(self, path: Path) -> dict[str, Setting]:
        table = _read(path).get(self._command, {})
        if not isinstance(table, dict):
            raise ConfigurationError(f"`{self._command}` in {path} must be a table of options")
        settings = {}
        for name, value in table.items():
            key = name.replace("_", "-")
            action = self._actions.get(key)
            if action is None:
                raise _unknown(name, f" in [{self._command}] of {path}", self._actions)
            read = _of_toml(key, action, value, str(path))
            settings[action.dest] = _setting(key, action, read, str(path))
        return settings

    def _of_environment(self, environment: Mapping[str, str]) -> dict[str, Setting]:
        variables = {_variable(key): key for key in self._actions}
        settings = {}
        for name, text in environment.items():
            if not name.startswith(PREFIX) or name in OTHER_VARIABLES or _is_a_link(name, text):
                continue
            key = variables.get(name)
            if key is None:
                raise _unknown(name, " in the environment", [*variables, *OTHER_VARIABLES])
            action = self._actions[key]
            read = _of_text(key, action, text, name)
            settings[action.dest] = _setting(key, action, read, name)
        return settings


def applied(settings: Mapping[str, Setting]) -> argparse.Namespace:
    """Return the namespace that the settings make."""
    return argparse.Namespace(**{dest: setting.value for dest, setting in settings.items()})


def file_of(environment: Mapping[str, str]) -> Path | None:
    """Return the file that is read when no flag names one, None when there is none.

    Raises ConfigurationError.
    """
    named = environment.get(FILE_VARIABLE)
    if named:
        return Path(named)
    home = Path(environment.get("HOME") or "/")
    own = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    places = (own / "ortolan" / "config.toml", Path("/etc/ortolan/config.toml"))
    try:
        return next((path for path in places if path.is_file()), None)
    except OSError as exc:  # another user's HOME, as after su or setpriv
        raise ConfigurationError(
            f"{exc.filename} cannot be read: {exc.strerror}; set HOME to the folder of this user, "
            f"or name a file with {FILE_VARIABLE}"
        ) from exc


def _read(path: Path) -> dict[str, Any]:
    """Return a file's tables by command. Raises ConfigurationError."""
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as exc:
        raise ConfigurationError(f"{path} cannot be read: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"{path} is no valid TOML: {exc}") from exc
    known = configurable_commands()
    for name in document:
        if name not in known:
            raise _unknown(name, f" at the top of {path}, which has a table a command", known)
    return document


def _key(action: argparse.Action) -> str:
    """Return an option's name without dashes in front, an argument's own name."""
    longest = max(action.option_strings, key=len, default=action.dest)
    return longest.removeprefix("--").replace("_", "-")


def _setting(key: str, action: argparse.Action, value: Any, source: str) -> Setting:
    return Setting(key, value, source, value == action.const if _is_flag(action) else value)


def _variable(key: str) -> str:
    return PREFIX + key.upper().replace("-", "_")


def _is_a_link(name: str, value: str) -> bool:
    return bool(_OF_KUBERNETES.fullmatch(name) or (name == "ORTOLAN_PORT" and _LINK.match(value)))


def _unknown(name: str, where: str, known: Iterable[str]) -> ConfigurationError:
    near = difflib.get_close_matches(name, list(known), n=1)
    meant = f"; did you mean `{near[0]}`?" if near else ""
    return ConfigurationError(f"there is no option `{name}`{where}{meant}")


def _is_flag(action: argparse.Action) -> bool:
    return action.nargs == 0


def _is_list(action: argparse.Action) -> bool:
    return action.nargs == "*" or isinstance(action, argparse._AppendAction)


def _of_toml(key: str, action: argparse.Action, value: object, source: str) -> Any:
    """Return a value of the file as the option's own. Raises ConfigurationError."""
    if _is_flag(action):
        if not isinstance(value, bool):
            raise _wrong(key, "must be true or false", value, source)
        return _flag(action, value)
    if _is_list(action):
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise _wrong(key, "must be a list of strings", value, source)
        return [_converted(key, action, item, source) for item in items]
    accepted: tuple[type, ...] = (int, float) if action.type in (int, float) else (str,)
    if action.type not in (int, float, None):
        accepted = (str, int)
    if isinstance(value, bool) or not isinstance(value, accepted):
        wanted = "a string" if accepted == (str,) else "a number"
        raise _wrong(key, f"must be {wanted}", value, source)
    return _converted(key, action, str(value), source)


def _of_text(key: str, action: argparse.Action, text: str, source: str) -> Any:
    """Return a variable's value as the option's own; lists are separated by commas."""
    if _is_flag(action):
        if text.strip().lower() not in _WORDS:
            raise _wrong(key, "must be true or false", text, source)
        return _flag(action, _WORDS[text.strip().lower()])
    if _is_list(action):
        return [_converted(key, action, part, source) for part in text.split(",") if part]
    return _converted(key, action, text, source)


def _flag(action: argparse.Action, is_on: bool) -> Any:
    """Return what the flag says when it is there, and the opposite when it is not."""
    return action.const if is_on else not action.const


def _converted(key: str, action: argparse.Action, text: str, source: str) -> Any:
    convert: Any = action.type or str
    try:
        value = convert(text)
    except argparse.ArgumentTypeError as exc:
        raise ConfigurationError(f"`{key}` {exc} ({source})") from exc
    except ValueError as exc:
        wanted = {int: "a whole number", float: "a number"}.get(convert, "valid")
        raise _wrong(key, f"must be {wanted}", text, source) from exc
    if action.choices is not None and value not in action.choices:
        raise _wrong(key, f"must be one of {', '.join(map(str, action.choices))}", value, source)
    return value


def _wrong(key: str, requirement: str, value: object, source: str) -> ConfigurationError:
    return ConfigurationError(f"`{key}` {requirement}, got {value!r} ({source})")
