"""The inputs of a model as a caller sees them, and whether given arrays fit them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnx_ir as ir

from onnx_cfad.errors import ModelError
from onnx_cfad.given import names_of, shown

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Any]
"""An array (or a list of arrays, for a sequence) for each input, by name."""

_OLDEST_IR_WITH_DEFAULTS = 4
"""Before this IR version an initializer had to be a graph input too, without being one for the caller."""


@dataclasses.dataclass(frozen=True)
class Port:
    """An input of a model.

    Attributes:
        name: Its name.
        type: The NumPy name of its element type (``str`` for strings); the ONNX type when it is not a tensor.
        dims: Its dimensions, a name where symbolic and None where unknown; None as a whole where the rank is unknown.
        required: It has no default.
        tensor: It takes a tensor.
    """

    name: str
    type: str
    dims: tuple[int | str | None, ...] | None
    required: bool = True
    tensor: bool = True

    def __str__(self) -> str:
        return self.type if self.dims is None else describe(self.type, self.dims)

    def accepts(self, type_: str, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of that element type and shape fits; a symbolic dimension takes any size."""
        if type_ != self.type or self.dims is None:
            return type_ == self.type
        fixed = [(want, have) for want, have in zip(self.dims, shape, strict=False) if isinstance(want, int)]
        return len(self.dims) == len(shape) and all(want == have for want, have in fixed)


def ports_of(model: ir.Model) -> tuple[Port, ...]:
    """The inputs of ``model``; those with a default value are not required."""
    without_defaults = model.ir_version < _OLDEST_IR_WITH_DEFAULTS
    return tuple(
        _port(value)
        for value in model.graph.inputs
        if not (without_defaults and value.is_initializer())
    )  # fmt: skip


def describe(type_: str, dims: Iterable[object]) -> str:
    """An element type and dimensions in one word: ``float32[2, B, ?]``."""
    return f"{type_}[{', '.join('?' if d is None else str(d) for d in dims)}]"


def type_name(dtype: ir.DataType) -> str:
    """The NumPy name of an element type."""
    return "str" if dtype == ir.DataType.STRING else dtype.numpy().name


def check_feeds(inputs: Sequence[Port], feeds: Feeds) -> None:
    """Compares feeds with the inputs of a model: names, element types, ranks and fixed dimensions.

    Raises:
        ModelError: They do not fit; the message names the first input that is wrong.
    """
    feeds, known = feeds_of(feeds), [port.name for port in inputs]
    missing = [f"'{port.name}' ({port})" for port in inputs if port.required and port.name not in feeds]
    if missing:
        raise ModelError("inputs", f"no value is given for {', '.join(missing)}", f"Given: {listed(feeds)}.")
    extra = [name for name in feeds if name not in known]
    if extra:
        raise ModelError(f"input '{extra[0]}'", f"the model has no such input; it has {listed(known)}", "Leave it out.")
    for port in inputs:
        if port.name in feeds and port.tensor:
            _check_feed(port, feeds[port.name])


def feeds_of(given: object) -> Feeds:
    """The inputs by name that a caller gives.

    Raises:
        ModelError: They are none.
    """
    if not isinstance(given, Mapping):
        what = f"expected inputs by name, found {shown(given)}"
        raise ModelError("feeds", what, "Give a dict of arrays.")
    feeds = cast("Mapping[object, Any]", given)
    names_of("feeds", feeds)
    return cast("Feeds", feeds)


def listed(names: Iterable[object], limit: int = 12) -> str:
    """Names in a message, the first ``limit`` of them."""
    shown = [f"'{name}'" for name in names]
    more = f" and {len(shown) - limit} more" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more if shown else "none"


def _check_feed(port: Port, given: object) -> None:
    try:
        array: Array = np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as error:  # rows of several lengths, tensors of other libraries
        raise ModelError(f"input '{port.name}'", f"expected {port}, found what is no array ({error})") from error
    found = "str" if array.dtype.kind in "OSU" else array.dtype.name
    if not port.accepts(found, array.shape):
        given = describe(found, array.shape)
        raise ModelError(f"input '{port.name}'", f"expected {port}, found {given}", "Cast or reshape the array.")


def _port(value: ir.Value) -> Port:
    name, required = value.name or "", not value.is_initializer()
    if not isinstance(value.type, ir.TensorType):
        return Port(name, str(value.type), None, required, tensor=False)
    dims = None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape.dims)
    return Port(name, type_name(value.type.dtype), dims, required)
