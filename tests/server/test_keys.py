"""The file of keys, the ring that reads it, the allowances, and the command."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

from limits import limited
from ortolan_runtime.errors import InvalidParameter
from ortolan_server.cli import main
from ortolan_server.keys import (
    KeyFileError,
    KeyLimits,
    KeyRing,
    add_key,
    default_key_file,
    read_keys,
    revoke_key,
)
from ortolan_server.ratelimit import Allowance


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def test_the_file_is_its_owners_alone_and_holds_no_secret(tmp_path: Path) -> None:
    """The digest is that of the whole secret."""
    path = tmp_path / "new" / "keys.json"
    key, secret = add_key(path, "laptop")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret not in path.read_text()
    assert secret.split("_")[1] == key.id
    assert read_keys(path) == (key,)


@pytest.mark.parametrize("name", ["", " ", "two\nlines", "\x1b[31mred"])
def test_a_name_that_a_list_cannot_show_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidParameter, match="`name` must be printable and not empty"):
        add_key(tmp_path / "keys.json", name)


def test_a_disk_without_room_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """And nothing beside it but the lock."""
    path = tmp_path / "keys.json"
    key, _ = add_key(path, "first")
    with (
        limited(resource.RLIMIT_FSIZE, 100),
        pytest.raises(KeyFileError, match="cannot be written"),
    ):
        add_key(path, "second")
    assert read_keys(path) == (key,)
    assert {file.name for file in tmp_path.iterdir()} == {"keys.json", "keys.json.lock"}


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """With the command that mends it."""
    path = tmp_path / "keys.json"
    add_key(path, "laptop")
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        KeyRing(path)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"keys": [{}]}', b'{"kyes": []}', b"\xff"])
def test_a_file_that_is_none_of_keys_is_refused(tmp_path: Path, raw: bytes) -> None:
    """At the start."""
    path = tmp_path / "keys.json"
    path.write_bytes(raw)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="is no file of keys"):
        KeyRing(path)


def test_a_key_is_found_by_its_whole_secret(tmp_path: Path) -> None:
    """Until it expires or is revoked."""
    path, clock = tmp_path / "keys.json", Clock()
    key, secret = add_key(path, "a", expires=1010.0, clock=clock)
    ring = KeyRing(path, clock=clock)
    assert ring.find(secret.encode()) == key
    for wrong in ("", secret[:-1], secret + "x", f"ort_{key.id}_", key.id, key.sha256):
        assert ring.find(wrong.encode()) is None
    clock.now = 1010.0
    assert ring.find(secret.encode()) is None
    assert ring.has_keys


def test_a_change_is_seen_after_a_second(tmp_path: Path) -> None:
    """And a revoked key stays in the list."""
    path, clock = tmp_path / "keys.json", Clock()
    ring = KeyRing(path, clock=clock)
    assert not ring.has_keys
    key, secret = add_key(path, "a")
    assert ring.find(secret.encode()) is None
    clock.now += 1
    assert ring.find(secret.encode()) == key
    revoke_key(path, key.id)
    clock.now += 1
    assert ring.find(secret.encode()) is None
    assert ring.has_keys
    os.unlink(path)
    clock.now += 1
    assert ring.has_keys


def test_an_id_that_is_none_cannot_be_revoked(tmp_path: Path) -> None:
    """By name."""
    with pytest.raises(KeyFileError, match="has no key 'x'"):
        revoke_key(tmp_path / "keys.json", "x")


@pytest.mark.parametrize("name", ["requests_per_minute", "tokens_per_minute", "concurrency"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    """A key that opens nothing is revoked instead."""
    with pytest.raises(InvalidParameter, match=f"`{name}` must be >= 1"):
        KeyLimits(**{name: 0})


def test_an_allowance_grows_back_within_a_minute() -> None:
    """Sixty a minute are one a second."""
    allowance = Allowance(60, now=0.0)
    allowance.use(70, now=0.0)
    assert allowance.left(0.0) == -10
    assert allowance.wait_s(1, now=0.0) == 11
    assert allowance.left(11.0) == 1
    assert allowance.left(1000.0) == 60


def test_the_command_adds_lists_and_revokes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The secret alone goes to stdout, so that a script can take it."""
    file = ["--file", str(tmp_path / "keys.json")]
    limits = ["--expires", "30d", "--concurrency", "4", "--model", "a", "--kind", "access"]
    assert main(["keys", "add", "ci", *limits, *file]) == 0
    secret = capsys.readouterr().out.strip()
    id = secret.split("_")[1]
    assert main(["keys", "list", *file]) == 0
    line = capsys.readouterr().out
    assert all(part in line for part in (id, "ci", "access", "good", "concurrency=4", "models=a"))
    assert secret not in line
    assert main(["keys", "revoke", id, *file]) == 0
    assert main(["keys", "list", *file]) == 0
    assert "revoked" in capsys.readouterr().out
    assert main(["keys", "revoke", "none", *file]) == 1
    assert "has no key 'none'" in capsys.readouterr().err


def test_the_file_has_its_place_in_the_users_configuration() -> None:
    """By the XDG rules."""
    assert default_key_file({"HOME": "/home/a"}) == Path("/home/a/.config/ortolan/keys.json")
    assert default_key_file({"XDG_CONFIG_HOME": "/c"}) == Path("/c/ortolan/keys.json")
