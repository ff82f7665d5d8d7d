"""Random loops that read a tensor at ``step * k + first``, and what they give and their gradient, written out."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
from hypothesis import strategies as st

HEADER = '<ir_version: 9, opset_import: ["" : 18]>'
WIDTH = 2


class Missing(Exception):
    """What an iteration reads is not there."""


@dataclasses.dataclass(frozen=True)
class Reads:
    """A loop ``p = cos(p * r)`` over reads r.

    Attributes:
        kind: How it is read: "gather", "gather1" (by a vector of one), "squeezed" (the same, squeezed), "nd", "element"
            (a Slice of one, squeezed), "window" (a Slice of ``length``, squares summed).
        rows: What the tensor has along the axis.
        axis: 0 or 1.
        step: Of the index.
        first: Of the index.
        start: Where the index comes from: "constant", "input", "size" (of the tensor, and a constant).
        counter: The index is carried and grows by step; else it is computed from the iteration number.
        narrow: It is int32.
        trips: The limit.
        limit: Where that comes from: "constant", "input", "size", "none".
        stop: The iteration that is the last one, if any is; None without a condition.
        symbolic: The tensor is declared without numbers.
        length: Of a window.
    """

    kind: str
    rows: int
    axis: int
    step: int
    first: int
    start: str
    counter: bool
    narrow: bool
    trips: int
    limit: str
    stop: int | None
    symbolic: bool
    length: int

    @property
    def iterations(self) -> int:
        """How often it runs."""
        if self.limit == "none":
            return self.end
        return min(self.trips, self.end)

    @property
    def end(self) -> int:
        """How often the condition lets it run."""
        return 99 if self.stop is None else self.stop

    def model(self, dtype: str = "double") -> onnx.ModelProto:
        """The loop."""
        return onnx.parser.parse_model(f"{HEADER} reads {self.text(dtype)}")

    def text(self, dtype: str) -> str:
        """The loop as text."""
        dims = ("N", WIDTH) if self.symbolic else (self.rows, WIDTH)
        shape = ", ".join(str(d) for d in (dims if self.axis == 0 else dims[::-1]))
        integer, cast = ("int32", 6) if self.narrow else ("int64", 7)
        limit = {"constant": "trips", "input": "n", "size": "n2", "none": ""}[self.limit]
        begin = {"constant": "first", "input": "b", "size": "b2"}[self.start]
        place = "i = Identity (j)" if self.counter else "t = Mul (kk, step) i = Add (t, begin)"
        again = "again = Identity (go)" if self.stop is None else "k1 = Add (k, one) again = Less (k1, stop)"
        start = "" if self.stop is None else "start"
        return f"""({dtype}[{shape}] x, {dtype}[{WIDTH}] h0, int64 n, int64 b, int64 stop) => ({dtype}[{WIDTH}] h)
            <int64 one = {{1}}, int64 zero = {{0}}, int64 trips = {{{self.trips}}}, int64 first = {{{self.first}}},
             {integer} step = {{{self.step}}}, int64 more = {{{self.trips - self.rows}}}, {integer} one_ = {{1}},
             int64 on = {{{self.first - self.rows}}}, {integer} length = {{{self.length}}},
             int64[1] ax = {{{self.axis}}},
             int64 axis = {{{self.axis}}}, {integer}[1] axs = {{{self.axis}}}> {{
            sh = Shape (x)
            size = Gather (sh, axis)
            b2 = Add (size, on)
            n2 = Add (size, more)
            start = Less (zero, stop)
            begin = Cast <to = {cast}> ({begin})
            last, h = Loop ({limit}, {start}, begin, h0) <body = step
                (int64 k, bool go, {integer} j, {dtype}[{WIDTH}] p) =>
                (bool again, {integer} next, {dtype}[{WIDTH}] q) {{
                {again}
                next = Add (j, step)
                kk = Cast <to = {cast}> (k)
                {place}
                {self.read}
                z = Mul (p, r)
                q = Cos (z)
            }}>
        }}"""

    @property
    def read(self) -> str:
        """The nodes that read r at i."""
        bounds = "s = Unsqueeze (i, zeros) i1 = Add (i, LENGTH) e = Unsqueeze (i1, zeros) a = Slice (x, s, e, axs)"
        zeros = "zeros = Constant <value = int64[1] {0}> () "
        one = f"{zeros} s = Unsqueeze (i, zeros) a = Gather <axis = {self.axis}> (x, s)"
        return {
            "gather": f"r = Gather <axis = {self.axis}> (x, i)",
            "gather1": f"{one} a2 = Mul (a, a) r = ReduceSum <keepdims = 0> (a2, ax)",
            "squeezed": f"{one} r = Squeeze (a, ax)",
            "nd": f"{zeros} s = Unsqueeze (i, zeros) s2 = Cast <to = 7> (s) r = GatherND (x, s2)",
            "element": f"{zeros} {bounds.replace('LENGTH', 'one_')} r = Squeeze (a, ax)",
            "window": f"{zeros} {bounds.replace('LENGTH', 'length')} a2 = Mul (a, a) "
            "r = ReduceSum <keepdims = 0> (a2, ax)",
        }[self.kind]

    def feeds(self, dtype: type = np.float64) -> dict[str, np.ndarray]:
        """Inputs."""
        rng = np.random.default_rng(self.rows)
        x = rng.uniform(0.3, 1.0, (self.rows, WIDTH) if self.axis == 0 else (WIDTH, self.rows))
        numbers = {"n": self.trips, "b": self.first, "stop": 0 if self.stop is None else self.stop}
        floats = {"x": x.astype(dtype), "h0": np.full(WIDTH, 0.7, dtype)}
        return {**floats, **{name: np.asarray(number, np.int64) for name, number in numbers.items()}}

    def gradient(self, seed: np.ndarray) -> dict[str, np.ndarray]:
        """The derivative written out: dq/dp = -sin(p r) r and dq/dr = -sin(p r) p.

        Raises:
            Missing: An iteration reads what is not there.
        """
        feeds = self.feeds()
        x = feeds["x"] if self.axis == 0 else feeds["x"].T
        tape: list[tuple[np.ndarray, np.ndarray, list[int]]] = []
        p = feeds["h0"]
        for k in range(self.iterations):
            places = self.places(self.step * k + self.first)
            rows = x[places]
            r = (rows**2).sum(0) if self.squares else rows[0]
            tape.append((p, r, places))
            p = np.cos(p * r)
        ct, by_x = seed.copy(), np.zeros_like(x)
        for before, r, places in reversed(tape):
            slope = -np.sin(before * r) * ct
            for place in places:
                by_x[place] += slope * before * (2 * x[place] if self.squares else 1)
            ct = slope * r
        return {"h": p, "x_grad": by_x if self.axis == 0 else by_x.T, "h0_grad": ct}

    @property
    def squares(self) -> bool:
        """Whether squares are summed."""
        return self.kind in ("gather1", "window")

    def places(self, place: int) -> list[int]:
        """The rows that are read at ``place``."""
        if self.kind not in ("element", "window"):
            if not -self.rows <= place < self.rows:
                raise Missing
            return [place % self.rows]
        bounds = [place, place + (1 if self.kind == "element" else self.length)]
        start, end = (min(max(v + self.rows if v < 0 else v, 0), self.rows) for v in bounds)
        found = list(range(start, end))
        if self.kind == "element" and len(found) != 1:
            raise Missing
        return found


def reads() -> st.SearchStrategy[Reads]:
    """Any of them."""
    found = st.builds(
        Reads,
        kind=st.sampled_from(["gather", "gather1", "squeezed", "nd", "element", "window"]),
        rows=st.integers(1, 6),
        axis=st.integers(0, 1),
        step=st.sampled_from([-1, -1, 1, 1, -2, 2, 3]),
        first=st.integers(-7, 7),
        start=st.sampled_from(["constant", "input", "size"]),
        counter=st.booleans(),
        narrow=st.booleans(),
        trips=st.integers(0, 6),
        limit=st.sampled_from(["constant", "input", "size", "none"]),
        stop=st.one_of(st.none(), st.integers(0, 6)),
        symbolic=st.booleans(),
        length=st.integers(1, 4),
    )
    return found.filter(lambda r: (r.limit != "none" or r.stop is not None) and (r.kind != "nd" or r.axis == 0))
