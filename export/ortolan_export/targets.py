"""What a bundle can be made for: the precisions that each device has kernels for, and the rest.

Kernels: docs/OperatorKernels.md of ONNX Runtime, CUDA execution provider; what TensorRT's KV cache
and attention want: NVIDIA's documentation of TensorRT 10.16, KVCacheUpdate and Attention.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ortolan_export.architectures.family import Decoder
from ortolan_export.errors import ExportError, UnsupportedModel
from ortolan_export.source import NativePrecision
from ortolan_runtime.bundle import Device, EnginePlan, GraphNames, ShapeProfile

_INTEGERS = "its integer products have no kernel there"
_LEAST_CHUNK = 32  # what holds every golden prompt
_USUAL_ROWS = 8  # the batch that TensorRT chooses its kernels for


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A device to make bundles for: the precisions it takes, and why it takes no others.

    The first precision is the default.
    """

    precisions: tuple[NativePrecision, ...]
    refusals: Mapping[NativePrecision, str]


class Engines(msgspec.Struct, frozen=True, kw_only=True):
    """What TensorRT builds engines for: rows that decode at once, and tokens of a prefill chunk.

    Raises ExportError.
    """

    rows: int = 16
    chunk: int = 256

    def __post_init__(self) -> None:
        for name, value, least in (("rows", self.rows, 1), ("chunk", self.chunk, _LEAST_CHUNK)):
            if value < least:
                raise ExportError(f"--engine-{name} must be >= {least}, got {value}")


TARGETS: Mapping[Device, Target] = {
    "cpu": Target(
        precisions=("int8", "int4", "int8+int4", "fp32"),
        refusals={"fp16": "a CPU computes it in fp32, and more slowly"},
    ),
    "cuda": Target(
        precisions=("fp16", "int4"),
        refusals={
            "int8": _INTEGERS,
            "int8+int4": _INTEGERS,
            "fp32": "its attention has no kernel there",
        },
    ),
    "tensorrt": Target(
        precisions=("fp16", "fp32"),
        refusals=dict.fromkeys(
            ("int8", "int4", "int8+int4"), "its products are no standard operators"
        ),
    ),
}


def choose_precision(device: Device, asked: NativePrecision | None) -> NativePrecision:
    """Return the precision asked for, or the device's default. Raises ExportError."""
    target = TARGETS[device]
    if asked is None:
        return target.precisions[0]
    if asked not in target.precisions:
        raise ExportError(
            f"--precision for {device} must be one of {', '.join(target.precisions)}, got {asked}: "
            f"{target.refusals[asked]}"
        )
    return asked


def check_decoder(decoder: Decoder, device: Device, precision: NativePrecision) -> None:
    """Raise UnsupportedModel for a model that the device has no operators for."""
    family = decoder.architecture.model_type
    if decoder.mixture is None:
        return
    if device == "tensorrt":
        raise UnsupportedModel(
            f"architecture {family!r} is not supported for tensorrt: there is no standard operator "
            "for a mixture of experts; export it --for cuda"
        )
    if device == "cuda" and precision == "int4":
        raise UnsupportedModel(
            f"architecture {family!r} is not supported in int4 for cuda: experts in 4 bits have "
            "another layout there; export it in fp16"
        )


def graph_names(decoder: Decoder, device: Device) -> GraphNames:
    """Return the names of a graph's inputs and outputs.

    On a GPU positions are inputs where the graph needs them itself, since computing them from
    shapes is work for the CPU.
    """
    if device == "tensorrt":
        return GraphNames(
            position_ids="position_ids",
            seqlens_k=None,
            total_sequence_length=None,
            write_indices="write_indices",
            logsumexp="logsumexp",
        )
    needs_positions = device == "cuda" and decoder.names.positions is not None
    return GraphNames(
        position_ids="position_ids" if needs_positions else None, logsumexp="logsumexp"
    )


def plan_engines(
    device: Device, asked: Engines | None, precision: NativePrecision
) -> EnginePlan | None:
    """Return two profiles, which cover every step of the runtime: decoding and a prefill chunk.

    A lone row decodes beside a spare one, so that 2 rows must be possible, and 2 positions. None
    stands for a device that builds no engines. Raises ExportError where it is asked for some.
    """
    if device != "tensorrt":
        if asked is not None:
            raise ExportError(
                f"--engine-rows and --engine-chunk are for tensorrt, got --for {device}"
            )
        return None
    engines = asked or Engines()
    rows = (1, min(_USUAL_ROWS, engines.rows), max(2, engines.rows))
    chunk = (1, engines.chunk, engines.chunk)
    return EnginePlan(
        profiles=(
            ShapeProfile(rows=rows, tokens=(1, 1, 1), positions=rows),
            ShapeProfile(rows=(1, 1, 1), tokens=chunk, positions=(1, 1, max(2, engines.chunk))),
        ),
        fp16=precision == "fp16",
    )
