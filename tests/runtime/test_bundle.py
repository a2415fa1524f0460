"""A bundle is read as it was written, refused when anything is off, and replaced as a whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortolan_runtime.bundle import (
    Bundle,
    GenerationDefaults,
    Golden,
    GraphNames,
    Manifest,
    cache_directory,
    new_folder,
    open_bundle,
    write_manifest,
)
from ortolan_runtime.errors import BundleError

FILES = {
    "model.onnx": b"graph",
    "model.onnx.data": b"weights" * 1000,
    "tokenizer.json": b"{}",
    "chat_template.jinja": "{{ messages }} é".encode(),
}


def manifest_of(**fields: Any) -> Manifest:
    needed: dict[str, Any] = {
        "name": "m",
        "architecture": "llama",
        "source_digest": "0" * 64,
        "precision": "int8",
        "context_length": 128,
        "vocab_size": 10,
        "layers": 2,
        "kv_heads": 3,
        "head_size": 16,
        "exporter_version": "1",
    }
    return Manifest(**{**needed, **fields})


def write(folder: Path, manifest: Manifest | None = None, **files: bytes) -> Path:
    """Write a bundle of small files, sound in all but its content."""
    folder.mkdir(parents=True)
    for name, content in {**FILES, **files}.items():
        (folder / name).write_bytes(content)
    write_manifest(folder, manifest or manifest_of())
    return folder


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return write(tmp_path / "sound")


def refusal(path: Path, **options: Any) -> str:
    """Return the one line with which a bundle is refused."""
    with pytest.raises(BundleError) as caught:
        open_bundle(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest as a document."""
    file = path / "bundle.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def edit_record(path: Path, file: str, **fields: Any) -> None:
    def change(document: dict[str, Any]) -> None:
        record = next(r for r in document["files"] if r["name"] == file)
        record.update(fields)

    edit(path, change)


def test_a_sound_bundle_is_opened_with_all_its_files(sound: Path) -> None:
    bundle = open_bundle(sound)
    assert [(r.name, r.size) for r in bundle.manifest.files] == sorted(
        (name, len(content)) for name, content in FILES.items()
    )
    assert bundle.graph_path == sound / "model.onnx"
    assert bundle.chat_template == "{{ messages }} é"


def test_a_bundle_without_a_chat_template_has_none(sound: Path) -> None:
    (sound / "chat_template.jinja").unlink()
    write_manifest(sound, manifest_of())
    assert open_bundle(sound).chat_template is None


names = st.text(min_size=1, max_size=20)


@settings(max_examples=15)
@given(
    manifest=st.builds(
        manifest_of,
        name=names,
        precision=st.sampled_from(["int8", "int4", "fp16", "fp32", "int8+int4"]),
        kv_layout=st.sampled_from(["shared", "concat"]),
        kv_dtype=st.sampled_from(["float32", "float16", "int8"]),
        single_row_exact=st.booleans(),
        graph=st.builds(GraphNames, logits=names, logsumexp=st.none() | names),
        bos_token_id=st.none() | st.integers(0, 2**31),
        eos_token_ids=st.lists(st.integers(0, 2**31)).map(tuple),
        generation_defaults=st.builds(
            GenerationDefaults, temperature=st.none() | st.floats(0, 2), top_k=st.none()
        ),
        golden=st.lists(
            st.builds(
                Golden,
                prompt_tokens=st.lists(st.integers(0, 9), max_size=3).map(tuple),
                tokens=st.lists(st.integers(0, 9), max_size=3).map(tuple),
                logprobs=st.lists(st.floats(-100, 0), max_size=3).map(tuple),
            ),
            max_size=2,
        ).map(tuple),
    )
)
def test_any_manifest_is_read_as_it_was_written(
    manifest: Manifest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = write(tmp_path_factory.mktemp("any") / "bundle", manifest)
    read = open_bundle(folder).manifest
    fields = [name for name in Manifest.__struct_fields__ if name != "files"]
    assert [getattr(read, f) for f in fields] == [getattr(manifest, f) for f in fields]


def test_a_token_takes_keys_and_values_of_all_layers_and_heads() -> None:
    assert manifest_of().kv_bytes_per_token == 2 * 2 * 3 * 16 * 4
    assert manifest_of(kv_dtype="float16").kv_bytes_per_token == 2 * 2 * 3 * 16 * 2


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    missing = f"no bundle at {tmp_path}/none: there is no such folder; make one with "
    assert refusal(tmp_path / "none") == missing + "`ortolan export SOURCE OUT`"


def test_a_folder_without_a_manifest_names_the_command_that_makes_one(tmp_path: Path) -> None:
    message = refusal(tmp_path)
    assert "it has no bundle.json" in message
    assert "ortolan export SOURCE OUT" in message


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "it has no bundle.json" in refusal(tmp_path / "file")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"name": "m"}',
        b'{"format_version": 1}',
        b'{"format_version": "1"}',
        b'{"format_version": 1, "x": ' + b"[" * 100_000,
    ],
)
def test_a_damaged_manifest_is_called_damaged(sound: Path, content: bytes) -> None:
    (sound / "bundle.json").write_bytes(content)
    assert "bundle.json is damaged" in refusal(sound)


def test_a_manifest_with_a_field_that_is_not_known_is_refused(sound: Path) -> None:
    edit(sound, lambda document: document.update(extra=1))
    assert "unknown field `extra`" in refusal(sound)


def test_a_bundle_older_than_the_size_of_4_bit_blocks_is_opened(sound: Path) -> None:
    edit(sound, lambda document: document.pop("int4_block_size"))
    assert open_bundle(sound).manifest.int4_block_size is None


def test_another_format_version_says_so_whatever_else_has_changed(sound: Path) -> None:
    (sound / "bundle.json").write_text('{"format_version": 2, "anything": "else"}')
    message = refusal(sound)
    assert "format version must be 1, got 2" in message
    assert "export the model again" in message


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_manifest_that_lists_no_graph_or_tokenizer_is_refused(sound: Path, name: str) -> None:
    edit(sound, lambda d: d.update(files=[r for r in d["files"] if r["name"] != name]))
    assert f"lists no {name}" in refusal(sound)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_missing_file_is_named(sound: Path, name: str) -> None:
    (sound / name).unlink()
    assert f"{sound / name} is missing or no plain file" in refusal(sound)


def test_a_file_of_another_size_is_refused_with_both_sizes(sound: Path) -> None:
    os.truncate(sound / "model.onnx.data", 6999)
    assert f"{sound}/model.onnx.data must have 7000 bytes, got 6999" in refusal(sound)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_with_one_flipped_bit_is_refused(sound: Path, name: str) -> None:
    content = bytearray((sound / name).read_bytes())
    content[len(content) // 2] ^= 1
    (sound / name).write_bytes(content)
    assert f"{sound / name} is damaged: its SHA-256 is not the manifest's" in refusal(sound)


def test_a_link_is_no_file_of_a_bundle(sound: Path, tmp_path: Path) -> None:
    (sound / "model.onnx.data").rename(tmp_path / "elsewhere")
    (sound / "model.onnx.data").symlink_to(tmp_path / "elsewhere")
    assert "model.onnx.data is missing or no plain file" in refusal(sound)


def test_a_folder_is_no_file_of_a_bundle(sound: Path) -> None:
    (sound / "model.onnx.data").unlink()
    (sound / "model.onnx.data").mkdir()
    assert "model.onnx.data is missing or no plain file" in refusal(sound)


@pytest.mark.parametrize("name", ["../sound/model.onnx", "/etc/passwd", "..", ".", "", "a/b"])
def test_a_file_outside_the_folder_is_refused(sound: Path, name: str) -> None:
    edit_record(sound, "model.onnx.data", name=name)
    assert "a bundle's file must lie in its folder" in refusal(sound)


def test_digests_are_checked_once_and_then_remembered(sound: Path, tmp_path: Path) -> None:
    read: list[int] = []
    for _ in range(2):
        open_bundle(sound, cache=tmp_path / "cache", progress=read.append)
    assert sum(read) == sum(len(content) for content in FILES.values())


def test_digests_are_checked_again_when_a_file_was_written_again(
    sound: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    open_bundle(sound, cache=cache)
    weights = sound / "model.onnx.data"
    weights.write_bytes(b"W" + weights.read_bytes()[1:])
    os.utime(weights, ns=(1, 1))
    assert "model.onnx.data is damaged" in refusal(sound, cache=cache)


def test_a_damaged_bundle_is_not_remembered_as_sound(sound: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    edit_record(sound, "model.onnx", sha256="0" * 64)
    for _ in range(2):
        assert "model.onnx is damaged" in refusal(sound, cache=cache)


def test_digests_are_checked_whenever_it_is_asked_for(sound: Path, tmp_path: Path) -> None:
    read: list[int] = []
    for _ in range(2):
        open_bundle(sound, cache=tmp_path, always_verify=True, progress=read.append)
    assert sum(read) == 2 * sum(len(content) for content in FILES.values())


def test_a_cache_that_cannot_be_written_costs_a_check_and_nothing_else(
    sound: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert isinstance(open_bundle(sound, cache=tmp_path / "file"), Bundle)


def test_a_new_folder_appears_whole_when_it_is_done(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with new_folder(out) as folder:
        (folder / "bundle.json").write_text("new")
        assert not out.exists()
        assert folder.parent == out.parent
    assert (out / "bundle.json").read_text() == "new"
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_new_folder_is_as_readable_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with new_folder(tmp_path / "out") as folder:
        (folder / "bundle.json").touch()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode


def write_and_fail(destination: Path) -> None:
    with new_folder(destination) as folder:
        (folder / "bundle.json").write_text("half of it")
        raise KeyError


def test_a_failure_midway_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        write_and_fail(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_is_replaced_by_a_new_one(sound: Path, tmp_path: Path) -> None:
    with new_folder(sound) as folder:
        (folder / "bundle.json").write_text("new")
    assert [path.name for path in sound.iterdir()] == ["bundle.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["sound"]


def test_a_failure_midway_keeps_the_old_bundle(sound: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        write_and_fail(sound)
    open_bundle(sound)
    assert [path.name for path in tmp_path.iterdir()] == ["sound"]


def test_a_folder_that_is_no_bundle_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").touch()
    with (
        pytest.raises(BundleError, match="exists and is no bundle"),
        new_folder(tmp_path / "photos"),
    ):
        pass
    assert (tmp_path / "photos" / "one.jpg").exists()


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match="exists and is no bundle"), new_folder(tmp_path / "file"):
        pass


def test_an_empty_folder_may_become_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with new_folder(tmp_path / "out") as folder:
        (folder / "bundle.json").touch()
    assert (tmp_path / "out" / "bundle.json").exists()


def test_a_process_that_is_killed_midway_leaves_the_old_bundle_intact(sound: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from ortolan_runtime.bundle import new_folder\n"
        "with new_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'bundle.json').write_text('new')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(sound)], check=False)
    assert killed.returncode == -signal.SIGKILL
    open_bundle(sound)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"ORTOLAN_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/ortolan"),
        ({"ORTOLAN_CACHE": "", "XDG_CACHE_HOME": ""}, "~/.cache/ortolan"),
        ({}, "~/.cache/ortolan"),
    ],
)
def test_the_cache_is_where_the_environment_says(environ: dict[str, str], expected: str) -> None:
    assert cache_directory(environ) == Path(expected).expanduser()


def test_a_bundle_is_under_its_name_at_every_moment_of_a_replacement(
    sound: Path, tmp_path: Path
) -> None:
    missing, is_over = [], threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            if not (sound / "bundle.json").exists():
                missing.append(True)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(50):
        with new_folder(sound) as folder:
            (folder / "bundle.json").write_text(str(number))
    is_over.set()
    watcher.join()
    assert missing == []
    assert (sound / "bundle.json").read_text() == "49"
    assert [path.name for path in sound.parent.iterdir() if path.name.startswith(".")] == []
