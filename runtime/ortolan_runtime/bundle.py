"""The bundle format, shared by the exporter that writes it and the runtime that reads it.

A bundle is a folder, complete in itself: the manifest ``bundle.json``, the graph ``model.onnx``
with its weights in ``model.onnx.data``, in some bundles a second graph ``prefill.onnx`` over the
same file of weights, ``tokenizer.json``, and ``chat_template.jinja`` where the
source has one. It is written atomically and refused when anything about it is off.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from ortolan_runtime.errors import BundleError
from ortolan_runtime.folders import replaced_folder

FORMAT_VERSION = 1
MANIFEST_NAME = "bundle.json"
GRAPH_NAME = "model.onnx"
PREFILL_GRAPH_NAME = "prefill.onnx"
WEIGHTS_NAME = "model.onnx.data"
ROWS_GRAPH_NAME = "rows.onnx"
TOKENIZER_NAME = "tokenizer.json"
CHAT_TEMPLATE_NAME = "chat_template.jinja"

_READ_BYTES = 1 << 20

Precision = Literal["int8", "int4", "fp16", "fp32", "int8+int4"]
Device = Literal["cpu", "cuda", "tensorrt"]
KVLayout = Literal["shared", "static", "concat"]
KVDtype = Literal["float32", "float16", "int8"]
Padding = Literal["right", "left", "none"]
# By the device that a bundle was made for. What TensorRT runs CUDA runs too, and the CPU anything.
_RUNS_ON: Mapping[Device, tuple[Device, ...]] = {
    "cpu": ("cpu",),
    "cuda": ("cuda", "cpu"),
    "tensorrt": ("tensorrt", "cuda", "cpu"),
}
Progress = Callable[[int], None]  # told how many more bytes (or units) are done


class FileRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a bundle: its plain name, size in bytes and SHA-256 in hex."""

    name: str
    size: int
    sha256: str


class Golden(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt with the greedy tokens that must follow it and their raw logprobs (natural log)."""

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


class GraphNames(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names of the graph's inputs and outputs; ``{layer}`` and ``{kind}`` (key, value) are filled
    in.

    Null stands for what a graph does not have. ``position_ids`` int64 ``[B, S]`` are the positions
    of the new tokens, ``write_indices`` int64 ``[B]`` the places in the KV cache of the first ones.
    ``logsumexp`` is float32 ``[R]``, the log of the sum of the exponentials of each row of logits.
    """

    input_ids: str = "input_ids"
    position_ids: str | None = None
    seqlens_k: str | None = "seqlens_k"
    total_sequence_length: str | None = "total_sequence_length"
    write_indices: str | None = None
    logit_positions: str = "logit_positions"
    past: str = "past.{layer}.{kind}"
    present: str = "present.{layer}.{kind}"
    logits: str = "logits"
    logsumexp: str | None = None


class MaskedGraph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A graph of another exporter's, which goes by an attention mask: names, and what it bears.

    It takes ``attention_mask`` int64 ``[B, past + S]`` and perhaps ``position_ids`` int64
    ``[B, S]``, and returns logits of all positions ``[B, S, vocab]``, or of the last
    ``num_logits_to_keep`` ones. ``use_cache_branch`` is a switch that is on where there is a past.
    A name is null where the graph has no such input. ``padding`` is where rows shorter than others
    may be filled up: ``right`` of their cached tokens; only ``left``, by graphs that count
    distances over places; or nowhere (``none``), by graphs that count positions over places.
    """

    input_ids: str = "input_ids"
    attention_mask: str | None = "attention_mask"
    position_ids: str | None = None
    num_logits_to_keep: str | None = None
    use_cache_branch: str | None = None
    past: str = "past_key_values.{layer}.{kind}"
    present: str = "present.{layer}.{kind}"
    logits: str = "logits"
    padding: Padding = "right"


class RowsGraphNames(msgspec.Struct, frozen=True):
    """Names of the inputs and outputs of the graph that copies a row of the KV cache.

    ``result``, which is the memory of ``target``, gets the first ``count`` tokens of ``source``.
    """

    source: str = "source"
    target: str = "target"
    count: str = "count"
    result: str = "result"


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling values from the source's generation config; for information, requests decide."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None


class ShapeProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sizes of a step that an engine is built for, each (least, usual, greatest).

    ``rows`` run at once, each with ``tokens`` new ones, of which ``positions`` in all get logits.
    """

    rows: tuple[int, int, int]
    tokens: tuple[int, int, int]
    positions: tuple[int, int, int]


class EnginePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How TensorRT builds engines of a graph, and whether they and timings are kept on disk."""

    profiles: tuple[ShapeProfile, ...]
    fp16: bool
    engine_cache: bool = True
    timing_cache: bool = True


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``bundle.json`` holds.

    ``target`` is the device that it was made for, ``engines`` what TensorRT needs to know, null for
    another. A KV cache that is ``shared`` may have any length, a ``static`` one has the context's.

    ``vocab_size`` is the number of columns of the logits, which may exceed the tokenizer's count.
    ``single_row_exact`` says that one row alone gives the same bits as that row in a batch; false
    for formats whose one-row kernel rounds differently (int4, fp32), which the runtime then avoids.
    ``int4_accuracy_level`` is that of the operator MatMulNBits: 4 quantises activations to 8 bits,
    0 does not; ``int4_block_size`` is how many weights share a scale. Both are null where no layer
    is in 4 bits, the size also in bundles older than it.
    ``prefill_graph`` is the file of a second graph with the same inputs and outputs, which computes
    prompts (prefill, scoring) while ``model.onnx`` decodes, over one KV cache; null for a bundle
    whose one graph does both. ``single_row_exact`` then speaks of decoding: a second graph is int8.
    ``masked_graph`` describes the graph of an adopted bundle, in the place of ``graph``.
    ``rows_graph`` is the file of the graph that copies rows of a KV cache in a device's memory,
    null for a bundle that runs on the CPU alone.
    """

    format_version: int = FORMAT_VERSION
    name: str
    architecture: str
    source_digest: str
    precision: Precision
    target: Device = "cpu"
    engines: EnginePlan | None = None
    int4_accuracy_level: int | None = None
    int4_block_size: int | None = None
    context_length: int
    vocab_size: int
    layers: int
    kv_heads: int
    head_size: int
    kv_layout: KVLayout = "shared"
    kv_dtype: KVDtype = "float32"
    single_row_exact: bool = False
    graph: GraphNames = GraphNames()
    masked_graph: MaskedGraph | None = None
    prefill_graph: str | None = None
    rows_graph: str | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    generation_defaults: GenerationDefaults = GenerationDefaults()
    exporter_version: str
    onnxruntime_version: str = ""
    golden: tuple[Golden, ...] = ()
    files: tuple[FileRecord, ...] = ()

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the bytes that one token of one sequence takes in the KV cache."""
        width = {"float32": 4, "float16": 2, "int8": 1}[self.kv_dtype]
        return 2 * self.layers * self.kv_heads * self.head_size * width

    @property
    def devices(self) -> tuple[Device, ...]:
        """Return the devices that the bundle runs on, the one that it was made for first."""
        return _RUNS_ON[self.target]

    def cache_length(self, tokens: int) -> int:
        """Return how long a row of the KV cache must be to hold ``tokens``."""
        return self.context_length if self.kv_layout == "static" else tokens

    def file(self, name: str) -> FileRecord | None:
        """Return the record of the file ``name``, or None."""
        return next((record for record in self.files if record.name == name), None)


class Bundle(msgspec.Struct, frozen=True):
    """A checked bundle: the folder and what its manifest says."""

    path: Path
    manifest: Manifest

    @property
    def graph_path(self) -> Path:
        """Return the path of the ONNX graph."""
        return self.path / GRAPH_NAME

    @property
    def prefill_graph_path(self) -> Path | None:
        """Return the path of the graph that computes prompts, None where ``graph_path`` does."""
        name = self.manifest.prefill_graph
        return None if name is None else self.path / name

    @property
    def rows_graph_path(self) -> Path | None:
        """Return the path of the graph that copies rows on a device, None where there is none."""
        name = self.manifest.rows_graph
        return None if name is None else self.path / name

    @property
    def tokenizer_path(self) -> Path:
        """Return the path of ``tokenizer.json``."""
        return self.path / TOKENIZER_NAME

    @property
    def chat_template(self) -> str | None:
        """Return the chat template's source, or None when the bundle has none."""
        path = self.path / CHAT_TEMPLATE_NAME
        return path.read_text(encoding="utf-8") if path.exists() else None


_manifest_decoder = msgspec.json.Decoder(Manifest)
_manifest_encoder = msgspec.json.Encoder()


def open_bundle(
    path: Path,
    *,
    cache: Path | None = None,
    always_verify: bool = False,
    progress: Progress | None = None,
) -> Bundle:
    """Return the bundle at ``path`` after checking it; sizes always, digests when they may have
    changed.

    Digests are checked at the first load and remembered in ``cache`` by size and modification time;
    ``always_verify`` checks them regardless. Raises BundleError with one line that says what is
    wrong.
    """
    manifest = _read_manifest(path)
    for record in manifest.files:
        _check_size(path, record)
    stamp = _stamp(path, manifest)
    stamp_path = None if cache is None else cache / "verified" / f"{stamp}.ok"
    if always_verify or stamp_path is None or not stamp_path.exists():
        for record in manifest.files:
            _check_digest(path, record, progress)
        if stamp_path is not None:
            _remember(stamp_path)
    return Bundle(path, manifest)


def write_manifest(folder: Path, manifest: Manifest, progress: Progress | None = None) -> Manifest:
    """Write ``bundle.json`` for the files in ``folder``; return the manifest with their records."""
    names = sorted(p.name for p in folder.iterdir() if p.name != MANIFEST_NAME)
    files = tuple(_record_of(folder / name, progress) for name in names)
    manifest = msgspec.structs.replace(manifest, files=files)
    raw = msgspec.json.format(_manifest_encoder.encode(manifest), indent=1)
    (folder / MANIFEST_NAME).write_bytes(raw + b"\n")
    return manifest


@contextlib.contextmanager
def new_folder(destination: Path) -> Iterator[Path]:
    """Give a temporary sibling of ``destination`` to fill; on success it takes that name, else it
    goes.

    A bundle already at ``destination`` is replaced in the last moment and is intact after any
    failure. Raises BundleError when ``destination`` exists and is no bundle, or has no room.
    """
    destination = destination.absolute()
    check_replaceable(destination)
    with replaced_folder(destination) as folder:
        yield folder


def check_replaceable(destination: Path) -> None:
    """Raise BundleError when something is at ``destination`` that is no bundle."""
    is_bundle = (destination / MANIFEST_NAME).exists()
    is_empty = destination.is_dir() and not any(destination.iterdir())
    if destination.exists() and not (is_bundle or is_empty):
        raise BundleError(
            f"{destination} exists and is no bundle; remove it or choose another name"
        )


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return the folder for bundles and stamps: ``ORTOLAN_CACHE``, else under XDG's cache."""
    if environ.get("ORTOLAN_CACHE"):
        return Path(environ["ORTOLAN_CACHE"]).expanduser()
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "ortolan"


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST_NAME
    if not file.is_file():
        why = f"it has no {MANIFEST_NAME}" if path.exists() else "there is no such folder"
        raise BundleError(f"no bundle at {path}: {why}; make one with `ortolan export SOURCE OUT`")
    try:
        raw = file.read_bytes()
        version = msgspec.json.decode(raw, type=_FormatVersion).format_version
        if version != FORMAT_VERSION:
            raise BundleError(
                f"{file}: format version must be {FORMAT_VERSION}, got {version}; "
                "export the model again with this version of ortolan"
            )
        manifest = _manifest_decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BundleError(f"{file} is damaged ({exc}); export the model again") from exc
    for needed in (GRAPH_NAME, manifest.prefill_graph, manifest.rows_graph, TOKENIZER_NAME):
        if needed is not None and manifest.file(needed) is None:
            raise BundleError(f"{file} lists no {needed}; export the model again")
    return manifest


class _FormatVersion(msgspec.Struct):
    format_version: int


def _check_size(folder: Path, record: FileRecord) -> None:
    if Path(record.name).name != record.name or record.name in ("", ".", ".."):
        raise BundleError(f"{folder}: a bundle's file must lie in its folder, got {record.name!r}")
    file = folder / record.name
    if file.is_symlink() or not file.is_file():
        raise BundleError(f"{file} is missing or no plain file; copy or export the bundle again")
    size = file.stat().st_size
    if size != record.size:
        raise BundleError(
            f"{file} must have {record.size} bytes, got {size}; copy or export the bundle again"
        )


def _check_digest(folder: Path, record: FileRecord, progress: Progress | None) -> None:
    if _sha256(folder / record.name, progress) != record.sha256:
        raise BundleError(
            f"{folder / record.name} is damaged: its SHA-256 is not the manifest's; "
            "copy or export the bundle again"
        )


def _record_of(file: Path, progress: Progress | None) -> FileRecord:
    return FileRecord(name=file.name, size=file.stat().st_size, sha256=_sha256(file, progress))


def _sha256(file: Path, progress: Progress | None) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_READ_BYTES):
            digest.update(block)
            if progress is not None:
                progress(len(block))
    return digest.hexdigest()


def _stamp(path: Path, manifest: Manifest) -> str:
    """Return a name that changes when any file of the bundle is written again."""
    digest = hashlib.sha256(str(path.absolute()).encode())
    for record in manifest.files:
        stat = (path / record.name).stat()
        digest.update(f"{record.name} {record.sha256} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _remember(stamp_path: Path) -> None:
    # A read-only cache costs a second check at the next start, nothing else.
    with contextlib.suppress(OSError):
        stamp_path.parent.mkdir(parents=True, exist_ok=True)
        stamp_path.touch()
