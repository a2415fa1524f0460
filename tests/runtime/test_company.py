"""Whether a lone row gets company is tried on this processor; here a graph decides it.

The graph adds a little to the logits when one position is asked for alone, as kernels for a single
row may round otherwise.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortolan_runtime.bundle import GRAPH_NAME, Bundle, open_bundle, write_manifest
from ortolan_runtime.layouts.shared import SharedLayout


def layout_of(bundle: Bundle, *, may_need_company: bool = True) -> SharedLayout:
    session = ort.InferenceSession(str(bundle.graph_path), providers=["CPUExecutionProvider"])
    return SharedLayout(
        session, None, bundle.manifest, rows=2, length=16, may_need_company=may_need_company
    )


@pytest.fixture
def uneven(alphabet_bundle: Path, tmp_path: Path) -> Bundle:
    """Give a bundle whose lone rows have other logits than the same rows in company."""
    folder = tmp_path / "uneven"
    shutil.copytree(alphabet_bundle, folder)
    model = onnx.load(str(folder / GRAPH_NAME))
    nodes = model.graph.node
    last = next(node for node in nodes if "logits" in node.output)
    last.output[0] = "even_logits"
    nodes.extend(
        [
            helper.make_node("Size", ["logit_positions"], ["wanted_rows"]),
            helper.make_node("Equal", ["wanted_rows", "one"], ["is_lone"]),
            helper.make_node("Cast", ["is_lone"], ["lone"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["lone", "rounding"], ["error"]),
            helper.make_node("Add", ["even_logits", "error"], ["logits"]),
        ]
    )
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1e-3), "rounding"))
    onnx.save(model, str(folder / GRAPH_NAME))
    manifest = open_bundle(alphabet_bundle).manifest
    write_manifest(folder, msgspec.structs.replace(manifest, single_row_exact=False))
    return open_bundle(folder)


def test_a_row_that_rounds_otherwise_alone_needs_company(uneven: Bundle) -> None:
    assert layout_of(uneven).needs_company


def test_a_row_that_rounds_alike_alone_runs_alone(alphabet_bundle: Path) -> None:
    assert not layout_of(open_bundle(alphabet_bundle)).needs_company


def test_nothing_is_tried_where_the_caller_does_without(uneven: Bundle) -> None:
    assert not layout_of(uneven, may_need_company=False).needs_company


def test_company_gives_a_lone_row_the_bits_that_it_has_in_a_batch(uneven: Bundle) -> None:
    layout = layout_of(uneven)
    tokens, past = np.array([97, 98]), np.array([3, 2], np.int32)
    lone = layout.decode(tokens[:1], past[:1]).logits.copy()
    assert lone.tobytes() == layout.decode(tokens, past).logits[:1].tobytes()
    one = layout.prefill(0, tokens, 0, np.array([1])).logits.copy()
    assert one.tobytes() == layout.prefill(0, tokens, 0, np.array([0, 1])).logits[1:].tobytes()


def test_the_trial_leaves_nothing_behind(uneven: Bundle) -> None:
    assert layout_of(uneven).binding_count == 0
