"""Tests that check a gradient run once for each mode of differentiation; those of a target that is missing, never."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from onnx_cfad.targets.tvm import environments
from onnx_cfad.targets.tvm.builds import BUILDS
from tests.modes import MODES, checks_of, in_mode


@pytest.fixture(autouse=True)
def derivative_mode(request: pytest.FixtureRequest) -> Iterator[str]:
    """The mode that ``assert_vjp`` checks in."""
    mode = getattr(request, "param", MODES[0])
    with in_mode(mode):
        yield mode


@pytest.fixture(autouse=True)
def same_draws(request: pytest.FixtureRequest) -> None:
    """What a test draws does not depend on the tests that ran before it."""
    rng = getattr(request.module, "RNG", None)
    if rng is not None:
        rng.bit_generator.state = np.random.default_rng(zlib.crc32(request.node.nodeid.encode())).bit_generator.state


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips the tests of a build of TVM that is not there."""
    for kind, build in BUILDS.items():
        if item.get_closest_marker(kind) is not None and environments.find(kind).python is None:
            pytest.skip(f"{build.title} is not installed: onnx-cfad targets install {kind}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes the mode a parameter of every test that checks a derivative."""
    modes = checks_of(metafunc.function)
    if modes:
        metafunc.parametrize("derivative_mode", modes, indirect=True, scope="function")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves a case that comes in several forms one of them in modes other than reverse; the forms take turns."""
    kept, left_out = [], []
    for item in items:
        (kept if _is_its_turn(item) else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def _is_its_turn(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    given = callspec.params if callspec is not None else {}
    if given.get("derivative_mode", MODES[0]) == MODES[0] or not {"case", "form"} <= given.keys():
        return True
    forms = [form for form in given["case"].forms if form != "computed" or given["case"].integers]
    return (
        given["form"]
        == forms[zlib.crc32(item.nodeid.partition("[")[0].encode() + given["case"].name.encode()) % len(forms)]
    )
