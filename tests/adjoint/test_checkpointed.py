"""Every corpus model gives the same gradients from checkpoints as from a full tape, for several segments and levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnx_cfad.adjoint.checkpointed import Checkpointed
from onnx_cfad.differentiate import Gradient, differentiate
from onnx_cfad.errors import PlanError
from onnx_cfad.graph.regions import control_flow, is_loop
from onnx_cfad.model import load
from onnx_cfad.options import Options
from tests.adjoint.agreement import all_makers, seeds
from tests.corpus import Example
from tests.graph.reading import parsed
from tests.oracle import check_emitted, run_ort

SETTINGS = ((0, 2), (1, 2), (2, 2), (3, 2), (2, 3))


def gradient(example: Example, plan: str, segment: int | None = None, levels: int | None = None) -> Gradient:
    """The example differentiated by one adjoint for all its loops."""
    outputs = None if example.outputs is None else tuple(example.outputs)
    options = Options(wrt=tuple(example.wrt), outputs=outputs, plan=plan, segment=segment, levels=levels)
    return differentiate(load(example.model), options)


@pytest.mark.parametrize(("segment", "levels"), SETTINGS)
@pytest.mark.parametrize("name", sorted(all_makers()))
def test_agrees_with_the_full_tape(name: str, segment: int, levels: int) -> None:
    if name == "loop_long":
        pytest.skip("its segments of one to three iterations say nothing new")
    example = all_makers()[name]()
    taped, checkpointed = (
        gradient(example, "taped").proto(),
        gradient(example, "checkpointed", segment, levels).proto(),
    )
    check_emitted(checkpointed)
    feeds = {**example.feeds, **seeds(example)}
    expected, found = run_ort(taped, feeds), run_ort(checkpointed, feeds)
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        if "random" not in name and not isinstance(value, list):
            np.testing.assert_allclose(found[key], value, rtol=1e-8, atol=1e-10, err_msg=key)


@pytest.mark.parametrize("settings", [{"segment": -1}, {"segment": 4, "levels": 1}, {"segment": 0, "levels": 3}])
def test_refuses_settings_that_mean_nothing(settings: dict[str, Any]) -> None:
    remedy = "a segment up to 1,000,000,000,000 and 2 to 8 levels|segment >= 1, or segment 0 with two levels"
    with pytest.raises(PlanError, match=f"Use ({remedy})"):
        Checkpointed(**settings)


WITH_PRODUCTS = (
    "scan_captured_weight",
    "if_in_loop_weights",
    "if_in_loop_weights_by_carry",
    "if_in_loop_weights_no_trips",
    "loop_captured_matrix_at_depth_two",
)


@pytest.mark.parametrize("name", WITH_PRODUCTS)
@pytest.mark.parametrize("levels", [2, 3])
def test_kept_products_change_no_gradient(name: str, levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_cfad.graph.products._WORTH", 0)
    example = all_makers()[name]()
    loops = [site.path for site in control_flow(load(example.model)).sites() if is_loop(site.node)]
    sites = tuple(f"{path}=checkpointed(segment=2,levels={levels},keep=products)" for path in loops)
    kept = differentiate(load(example.model), Options(wrt=tuple(example.wrt), sites=sites)).proto()
    check_emitted(kept)
    feeds = {**example.feeds, **seeds(example)}
    expected, found = run_ort(gradient(example, "taped").proto(), feeds), run_ort(kept, feeds)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-8, atol=1e-10, err_msg=key)


RECURRENT = """(float[2, 512] x, float[8, 2, 16] xs, float[512, 512] w, float[16, 512] u, float[512] b)
    => (float[2, 512] y) {
    y = Scan <num_scan_inputs = 1, body = body (float[2, 512] h, float[2, 16] x_t) => (float[2, 512] next) {
        p = MatMul (h, w)  q = MatMul (x_t, u)  s = Add (p, q)  z = Add (s, b)  next = Tanh (z)
    }> (x, xs)
}"""


def recurrent(setting: str, trips: int = 8) -> ir.Model:
    options = Options(wrt=("w", "b", "u"), sites=(f"main/scan_0={setting}",))
    return differentiate(parsed(RECURRENT.replace("float[8,", f"float[{trips},")), options).model


def bodies(graph: ir.Graph) -> list[ir.Graph]:
    """The bodies of the Scans of a graph, in order."""
    return [node.attributes["body"].as_graph() for node in graph if node.op_type == "Scan"]


def test_replay_reads_the_products_that_were_kept() -> None:
    for setting, computed in (("checkpointed(segment=4)", 1), ("checkpointed(segment=4,keep=products)", 0)):
        model = recurrent(setting)
        replay = bodies(bodies(model.graph)[-1])[0]
        assert [node.op_type for node in replay].count("MatMul") == computed


def test_what_an_iteration_adds_of_its_slices_alone_is_added_for_a_segment_at_once() -> None:
    forward = bodies(bodies(recurrent("checkpointed(segment=4)").graph)[0])[0]
    assert [node.op_type for node in forward] == ["MatMul", "Add", "Tanh"]


def test_weight_gradient_of_a_segment_is_added_by_its_product() -> None:
    """No second matrix beside the running sum; and the cotangent that two products read is stacked once."""
    segment = bodies(recurrent("checkpointed(segment=4)", trips=800).graph)[-1]
    products = [node for node in segment if node.op_type == "Gemm"]
    assert [len(node.inputs) for node in products] == [3, 3]
    reverse = bodies(segment)[1]
    assert len(reverse.outputs) == 3  # the carry's cotangent, the carry handed on, one stack


def test_few_bytes_of_factors_are_contracted_once_for_all_segments() -> None:
    """For 8 iterations the factors are less than three matrices: none is summed from segment to segment."""
    model = recurrent("checkpointed(segment=4)")
    carried = [value.shape for value in bodies(model.graph)[-1].outputs if value.shape is not None]
    assert ir.Shape([512, 512]) not in carried
    assert [node.op_type for node in model.graph].count("Gemm") == 1


def test_keep_is_products_or_nothing() -> None:
    with pytest.raises(PlanError, match="expected products"):
        Checkpointed(4, keep="everything")
