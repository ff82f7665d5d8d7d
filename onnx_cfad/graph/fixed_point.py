"""Is a loop a fixed-point iteration, and why, or why not.

Such a loop applies one map to its carries until they stop moving: its condition compares a norm of their change with a
tolerance, and the map depends neither on the iteration number nor on per-step inputs. Its result is a function of what
the map captures, by the implicit function theorem, whatever the number of iterations was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import onnx_ir as ir

from onnx_cfad.graph.accelerated import plain_site
from onnx_cfad.graph.activity import carries_derivative
from onnx_cfad.graph.change import Changes, Norm, shaped
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.regions import LoopSite, captured_by, handed_on
from onnx_cfad.graph.stopping import Condition, Test, has_cap, only_tests, read_condition, tests_in, unreadable
from onnx_cfad.graph.trips import constant_of, trip_count
from onnx_cfad.graph.walk import graphs_of


@dataclasses.dataclass(frozen=True)
class FixedPoint:
    """What a loop iterates, and when it stops.

    Attributes:
        states: Positions of the carries that the map moves, what is computed from them alone included.
        residuals: Positions of carries that hold a norm of the change.
        invariants: Positions of carries that are handed on unchanged.
        bookkeeping: Positions of the other carries: counters, and what nobody reads.
        condition: The tolerance tests of the condition; None where it has none that measures the change.
        tests: What each of them is, in words.
        capped: Something else can stop the loop too.
        obstacles: Why no fixed point can be differentiated implicitly here; empty where it can be when asked for.
        doubts: Why it is not taken for one unasked.
    """

    states: tuple[int, ...]
    residuals: tuple[int, ...] = ()
    invariants: tuple[int, ...] = ()
    bookkeeping: tuple[int, ...] = ()
    condition: Condition | None = None
    tests: tuple[str, ...] = ()
    capped: bool = False
    obstacles: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether the loop certainly is a fixed-point iteration."""
        return not (self.obstacles or self.doubts)

    @property
    def why_not(self) -> str:
        """Why it is none, in one line; empty where it is one."""
        return "; ".join((*self.obstacles, *self.doubts))

    def __str__(self) -> str:
        if not self.found:
            return f"no fixed point: {self.why_not}"
        cap = ", or by its cap" if self.capped else ""
        return f"fixed point: stops by {' and '.join(self.tests)}{cap}"


def find_fixed_point(site: LoopSite) -> FixedPoint:
    """Whether ``site`` iterates to a fixed point.

    Cost is linear in the nodes of the body times its carries.
    """
    return _Search(site).run()


class _Search:
    def __init__(self, site: LoopSite) -> None:
        self.site = site = plain_site(site)
        self.body = site.body
        self.inside = set(graphs_of(site.body))
        self.entries = {carry.entry: k for k, carry in enumerate(site.carries)}
        self.invariants = {k for k, c in enumerate(site.carries) if handed_on(c)}
        self.cones = [self.cone([c.exit]) for c in site.carries]
        self.doubts: list[str] = []
        self.obstacles: list[str] = []

    def run(self) -> FixedPoint:
        site = self.site
        if site.is_scan:
            return FixedPoint((), obstacles=("a Scan runs once for each slice",))
        condition = read_condition(site.proceed)
        measured, words, tests = self.measured(condition)
        moving = [k for k, c in enumerate(site.carries) if k not in self.invariants and is_real(c.entry)]
        states = self.closure(measured or set(self.unasked(moving)))
        self.check_map(states)
        if measured:
            self.check_covered(states, measured)
        derived, residuals, rest = self.classify(states, tests)
        self.check_outputs()
        if trip_count(site).static == 0:
            self.obstacles.append("it never runs")
        return FixedPoint(
            tuple(sorted(states | derived)),
            tuple(sorted(residuals)),
            tuple(sorted(self.invariants)),
            tuple(sorted(rest)),
            only_tests(condition) if measured else None,
            tuple(words),
            has_cap(condition) or (site.limit is not None and not _unbounded(site.limit)),
            tuple(dict.fromkeys(self.obstacles)),
            tuple(dict.fromkeys(self.doubts)),
        )

    def unasked(self, moving: list[int]) -> list[int]:
        """The carries to take for the state where no tolerance says: those that depend on a carry like themselves."""
        return [k for k in moving if k in self.reached(self.cones[k])] or moving

    # The condition

    def measured(self, condition: Condition) -> tuple[set[int], list[str], list[Test]]:
        """The carries whose change the condition measures, in words, and its tests."""
        changes, tests = Changes(self.site), tests_in(condition)
        found, words = set[int](), list[str]()
        self.doubts += [f"its condition: {why}" for why in unreadable(condition)]
        if not tests and not unreadable(condition):
            fixed = "it runs a number of iterations that does not depend on convergence"
            self.doubts.append(fixed)
        for test in tests:
            norm = changes.norm(test.measure)
            if norm is None or not (norm.even or (test.elements and norm.even)):
                self.doubts.append(self.no_norm(test, norm, changes))
                continue
            if self.is_scheduled(test.threshold):
                self.doubts.append("its tolerance depends on the iteration number")
                continue
            found |= norm.carries
            words.append(self.worded(norm, test))
        return (set(), [], tests) if self.doubts else (found, words, tests)

    def no_norm(self, test: Test, norm: Norm | None, changes: Changes) -> str:
        if norm is not None:
            return f"'{test.measure.name}' is no norm of the change: it can be small where the change is not"
        backwards = changes.norm(test.threshold)
        if backwards is not None and backwards.even:
            return "it goes on while the change is small"
        return f"'{test.measure.name}', which its condition compares, is no norm of a carry's change"

    def worded(self, norm: Norm, test: Test) -> str:
        names = ", ".join(f"'{self.site.carries[k].entry.name}'" for k in sorted(norm.carries))
        constant = constant_of(test.threshold)
        against = (
            f"{float(constant.reshape(-1)[0]):g}" if constant is not None and constant.size == 1 else "a tolerance"
        )
        return f"the {norm} of the change of {names} {'<=' if test.strict else '<'} {against}"

    def is_scheduled(self, value: ir.Value) -> bool:
        """Whether ``value`` depends on the iteration number, or on a counter."""
        cone = self.cone([value])
        counters = [
            k for k in self.reached(cone) if k not in self.invariants and not is_real(self.site.carries[k].entry)
        ]
        return self.site.index in cone or bool(counters)

    # The map

    def closure(self, start: set[int]) -> set[int]:
        """The carries that ``start`` depends on, from one iteration to the next."""
        found, pending = set[int](), list(start)
        while pending:
            k = pending.pop()
            if k not in found:
                found.add(k)
                pending += [j for j in self.reached(self.cones[k]) if j not in self.invariants]
        return found

    def check_map(self, states: set[int]) -> None:
        """The map is the same in every iteration, and moves tensors of real numbers."""
        site = self.site
        if not states:
            self.obstacles.append("no carry of real numbers moves")
        for k in sorted(states):
            carry, cone = site.carries[k], self.cones[k]
            if not is_real(carry.entry):
                self.obstacles.append(f"the iteration reads '{carry.entry.name}', which is no tensor of real numbers")
            if site.index in cone:
                self.obstacles.append(f"'{carry.entry.name}' depends on the iteration number")
            if site.predicate in cone:
                self.obstacles.append(f"'{carry.entry.name}' depends on the condition")
            if not all(is_pure(node) for node in self.makers(cone)):
                self.obstacles.append(f"'{carry.entry.name}' depends on random numbers")
            shape, result = carry.entry.shape, carry.exit.shape
            if shape is not None and result is not None and shape.rank() != result.rank():
                self.obstacles.append(f"'{carry.entry.name}' changes its shape")

    def check_covered(self, states: set[int], measured: set[int]) -> None:
        """Every state converges when the measured ones do: it is coupled with them, or follows from them."""
        covered = set(measured)
        while True:
            more = {k for k in states - covered if self.is_coupled(k, covered) or self.follows(k, covered)}
            if not more:
                break
            covered |= more
        for k in sorted(states - covered):
            self.doubts.append(f"its condition does not measure the change of '{self.site.carries[k].entry.name}'")

    def is_coupled(self, k: int, covered: set[int]) -> bool:
        """Whether carry k depends on covered carries that depend on it."""
        return any(k in self.closure({j}) and j in self.closure({k}) - {k} for j in covered)

    def follows(self, k: int, covered: set[int]) -> bool:
        """Whether carry k is a function of covered carries."""
        cut = {self.site.carries[j].exit for j in covered} | {shaped(self.site.carries[j].exit) for j in covered}
        cut.discard(self.site.carries[k].entry)
        cone = self.cone([self.site.carries[k].exit], cut)
        return all(j in covered or j in self.invariants for j in self.reached(cone))

    # The rest

    def classify(self, states: set[int], tests: Iterable[Test]) -> tuple[set[int], set[int], set[int]]:
        """Which other carries are functions of the state, norms of its change, or bookkeeping."""
        measures = self.cone(
            [test.measure for test in tests], {c.exit for k, c in enumerate(self.site.carries) if k in states}
        )
        derived, residuals, rest = set[int](), set[int](), set[int]()
        changes = Changes(self.site)
        for k, carry in enumerate(self.site.carries):
            if k in states or k in self.invariants:
                continue
            if not carries_derivative(carry.entry) or not is_read(carry.final):
                rest.add(k)
                if carries_derivative(carry.entry) and is_real(carry.entry) and self.is_function(k, states):
                    rest.discard(k)
                    (residuals if self.is_norm(carry.exit, measures, changes) else derived).add(k)
            elif not is_real(carry.entry):
                self.obstacles.append(f"'{carry.entry.name}' is no tensor of real numbers")
            elif not self.is_function(k, states):
                self.obstacles.append(f"'{carry.entry.name}' gathers something from all iterations")
            elif self.is_norm(carry.exit, measures, changes):
                residuals.add(k)
            else:
                derived.add(k)
        return derived, residuals, rest

    def is_norm(self, value: ir.Value, measures: set[ir.Value], changes: Changes) -> bool:
        return value in measures and changes.norm(value) is not None and changes.change(value) is None

    def is_function(self, k: int, states: set[int]) -> bool:
        """Whether carry k is computed from the states of one iteration alone, and repeatably."""
        cone = self.cones[k]
        steady = self.site.index not in cone and self.site.predicate not in cone
        return (
            steady
            and all(j in states or j in self.invariants for j in self.reached(cone))
            and all(is_pure(node) for node in self.makers(cone))
        )

    def check_outputs(self) -> None:
        for output in self.site.outputs:
            if is_read(output.stacked):
                self.obstacles.append(f"'{output.stacked.name}' holds results of all iterations")

    # Dependence

    def cone(self, roots: Iterable[ir.Value], cut: Iterable[ir.Value] = ()) -> set[ir.Value]:
        """The values of the body that ``roots`` depend on, themselves included, not further than ``cut``."""
        stop, found, pending = set(cut), set[ir.Value](), list(roots)
        while pending:
            value = pending.pop()
            if value in found or value.graph not in self.inside:
                continue
            found.add(value)
            node = value.producer()
            if node is not None and value not in stop:
                pending += [v for v in (*node.inputs, *captured_by(node)) if v is not None]
        return found

    def reached(self, cone: set[ir.Value]) -> list[int]:
        """The carries whose entries are in ``cone``."""
        return [k for entry, k in self.entries.items() if entry in cone]

    def makers(self, cone: set[ir.Value]) -> list[ir.Node]:
        """The nodes that make the values of ``cone``."""
        return [node for node in (value.producer() for value in cone) if node is not None]


def is_real(value: ir.Value) -> bool:
    """Whether ``value`` is a tensor of floating-point numbers."""
    return isinstance(value.type, ir.TensorType) and value.type.dtype.is_floating_point()


def is_read(value: ir.Value) -> bool:
    """Whether anything reads ``value``."""
    return bool(value.uses()) or value.is_graph_output()


def _unbounded(value: ir.Value) -> bool:
    constant = constant_of(value)
    return constant is not None and int(constant.reshape(-1)[0]) >= 2**62
