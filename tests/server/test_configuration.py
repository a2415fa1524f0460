"""Options from flags, variables and a file: which counts, and what is refused."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ortolan_server.cli import main
from ortolan_server.commands import serve
from ortolan_server.configuration import Configurable, ConfigurationError, Setting, file_of
from ortolan_server.serve_flags import add_server_flags, settings_of
from ortolan_server.settings import ServerSettings

NOTHING: Mapping[str, str] = {"HOME": "/nonexistent"}


def settings(
    *argv: str, env: Mapping[str, str] = NOTHING, file: Path | None = None
) -> dict[str, Setting]:
    """Return the settings of `ortolan serve` by key."""
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    named = [] if file is None else ["--config", str(file)]
    given = parser.parse_args([*argv, *named])
    configurable: Configurable = given.configurable
    return {s.key: s for s in configurable.settings(given, env).values()}


def written(folder: Path, text: str) -> Path:
    """Return a file with options of serve."""
    file = folder / "config.toml"
    file.write_text(f"[serve]\n{text}\n")
    return file


def test_every_setting_of_the_server_has_an_option() -> None:
    """But the key, which must not stand where others can read it."""
    parser = argparse.ArgumentParser()
    add_server_flags(parser)
    given = vars(parser.parse_args([]))
    assert set(ServerSettings.__struct_fields__) - set(given) == {"api_key"}
    assert settings_of(argparse.Namespace(**given), {}) == ServerSettings(
        keys_file=given["keys_file"]
    )


def test_a_flag_comes_before_a_variable_before_the_file_before_the_default(tmp_path: Path) -> None:
    """Each with its source."""
    file = written(tmp_path, 'port = 1\nslots = 2\nmodel-name = "m"')
    env = {"ORTOLAN_PORT": "3", "ORTOLAN_SLOTS": "4"}
    found = settings("--port", "5", env=env, file=file)
    assert [
        (found[k].value, found[k].source) for k in ("port", "slots", "model-name", "grace")
    ] == [
        (5, "flag"),
        (4, "ORTOLAN_SLOTS"),
        ("m", str(file)),
        (20.0, "default"),
    ]


# What each kind of option may be in a variable and in a file, and what the command gets.
KINDS: list[tuple[str, str, str, Any]] = [
    ("port", "81", "81", 81),
    ("grace", "2", "2", 2.0),
    ("kv-memory", "2KiB", '"2KiB"', 2048),
    ("kv-memory", "2000", "2000", 2000),
    ("host", "::1", '"::1"', "::1"),
    ("strict", "true", "true", True),
    ("strict", "off", "false", False),
    ("no-page", "1", "true", False),
    ("no-page", "0", "false", True),
    ("device", "cuda", '"cuda"', "cuda"),
    ("allowed-host", "a,b", '["a", "b"]', ["a", "b"]),
    ("allowed-host", "a", '"a"', ["a"]),
    ("bundles", "./a,x=./b", '["./a", "x=./b"]', ["./a", "x=./b"]),
]


@pytest.mark.parametrize(("key", "text", "toml", "value"), KINDS)
def test_a_value_is_the_same_from_a_variable_and_from_the_file(
    key: str, text: str, toml: str, value: Any, tmp_path: Path
) -> None:
    """Underscores do in the file as well."""
    variable = f"ORTOLAN_{key.upper().replace('-', '_')}"
    assert settings(env={**NOTHING, variable: text})[key].value == value
    assert settings(file=written(tmp_path, f"{key} = {toml}"))[key].value == value
    underscored = f"{key.replace('-', '_')} = {toml}"
    assert settings(file=written(tmp_path, underscored))[key].value == value


def test_every_option_of_serve_has_a_variable() -> None:
    """`ortolan config` names them all; nothing but `--config` is left out."""
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    flags = {o for a in parser._actions for o in a.option_strings if o.startswith("--")}
    assert {f"--{key}" for key in settings()} - {"--bundles"} == flags - {"--help", "--config"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("prot = 1", ["`prot`", "did you mean `port`?", "config.toml"]),
        ("port = true", ["`port` must be a number, got True"]),
        ('port = "x"', ["`port` must be a number, got 'x'"]),
        ("port = 1.5", ["`port` must be a whole number, got '1.5'"]),
        ("host = 1", ["`host` must be a string, got 1"]),
        ('strict = "yes"', ["`strict` must be true or false"]),
        ("allowed-host = [1]", ["`allowed-host` must be a list of strings"]),
        ('kv-memory = "much"', ["`kv-memory` must be a size such as 512MiB"]),
        ('device = "tpu"', ["`device` must be one of cpu, cuda, tensorrt, got 'tpu'"]),
        ("port = ", ["no valid TOML"]),
        ("[server]\nport = 1", ["`server` at the top", "did you mean `serve`?"]),
    ],
)
def test_what_is_wrong_in_the_file_is_named(line: str, words: list[str], tmp_path: Path) -> None:
    """With the file, in one line."""
    with pytest.raises(ConfigurationError) as caught:
        settings(file=written(tmp_path, line))
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert str(tmp_path) in message


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("ORTOLAN_SLOT", "1", "did you mean `ORTOLAN_SLOTS`?"),
        ("ORTOLAN_SLOTS", "many", "`slots` must be a whole number, got 'many' (ORTOLAN_SLOTS)"),
        ("ORTOLAN_STRICT", "maybe", "`strict` must be true or false"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(name: str, text: str, words: str) -> None:
    """By the variable."""
    with pytest.raises(ConfigurationError) as caught:
        settings(env={**NOTHING, name: text})
    assert words in str(caught.value)


def test_what_kubernetes_says_of_a_service_is_no_option() -> None:
    """Its variables for a service `ortolan` or `ortolan-chat` are in every container there."""
    links = {
        "ORTOLAN_PORT": "tcp://10.96.0.7:80",
        "ORTOLAN_PORT_80_TCP": "tcp://10.96.0.7:80",
        "ORTOLAN_PORT_80_TCP_ADDR": "10.96.0.7",
        "ORTOLAN_SERVICE_HOST": "10.96.0.7",
        "ORTOLAN_SERVICE_PORT": "80",
        "ORTOLAN_CHAT_SERVICE_PORT_HTTP": "80",
    }
    assert settings(env={**NOTHING, **links})["port"].source == "default"


def test_the_file_is_looked_for_where_its_owner_keeps_such_files(tmp_path: Path) -> None:
    """ORTOLAN_CONFIG names another, which must be there."""
    own = tmp_path / ".config" / "ortolan" / "config.toml"
    assert file_of({"HOME": str(tmp_path)}) in (None, Path("/etc/ortolan/config.toml"))
    own.parent.mkdir(parents=True)
    own.touch()
    assert file_of({"HOME": str(tmp_path)}) == own
    assert file_of({"XDG_CONFIG_HOME": str(tmp_path / ".config")}) == own
    with pytest.raises(ConfigurationError, match="cannot be read"):
        settings(env={"ORTOLAN_CONFIG": str(tmp_path / "nothing.toml")})


def test_a_home_that_cannot_be_looked_into_is_told_of() -> None:
    """As another user's cannot; a name that is too long fails for root as well."""
    with pytest.raises(ConfigurationError, match="cannot be read: .*; set HOME"):
        file_of({"HOME": "/" + 300 * "x"})


def test_config_prints_a_file_that_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each value with its source; of the key only that there is one."""
    monkeypatch.setenv("ORTOLAN_API_KEY", "sk-secret")
    monkeypatch.setenv("ORTOLAN_QUEUE_LIMIT", "7")
    assert main(["config", "./a", "--no-page", "--cors-origin", "https://a.example"]) == 0
    printed = capsys.readouterr().out
    assert "queue-limit = 7" in printed
    assert "# ORTOLAN_QUEUE_LIMIT" in printed
    assert "sk-secret" not in printed
    assert "ORTOLAN_API_KEY is set" in printed
    table = tomllib.loads(printed)["serve"]
    assert table["bundles"] == ["./a"]
    assert table["no-page"] is True
    again = tmp_path / "again.toml"
    again.write_text(printed)
    found = settings(file=again)
    assert found["no-page"].value is False
    assert found["cors-origin"].value == ["https://a.example"]
    assert found["queue-limit"].source == str(again)


def test_a_wrong_file_ends_serve_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is loaded."""
    file = written(tmp_path, "prot = 1")
    assert main(["serve", "--config", str(file)]) == 1
    told = capsys.readouterr().err
    assert told.startswith("ortolan: error: there is no option `prot`")
    assert told.count("\n") == 1


def test_the_help_of_serve_still_tells_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    """Though the parser does not know them any more."""
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    printed = capsys.readouterr().out
    assert "(default: 8000)" in printed
    assert "SUPPRESS" not in printed
