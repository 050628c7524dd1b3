"""The subgraph analyzer: what groups of nodes do at some sizes, counted (`Work`), before any of them ran.

    groups in the order they run, sizes  ->  for each: points, arithmetic, bytes, how far those come from, tasks

How far bytes come from is the plan's doing: what the group before wrote is in the nearest cache, a weight was last touched one
whole call ago. So bytes are counted along the plan, and again from its end to its beginning, as calls follow each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from hotfuse.fusion.arithmetic import arithmetic_of, product_of
from hotfuse.fusion.rules import FOLDS, Fused, is_pointwise, results_of
from hotfuse.fusion.walks import KEPT, LEVELS, NORMS, Walks, walks_of
from hotfuse.fusion.whereabouts import located
from hotfuse.hardware.pairs import ABREAST, ACROSS, STRIPS
from hotfuse.hardware.work import ALONE, BY_COLUMNS, BY_ROWS, GATHERED, IN_ORDER, STRIDED, Touch, Use, Work
from hotfuse.ir.dim import Dim, substitute, symbols_of
from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.layout import Layout
from hotfuse.ir.op import OPS, Pattern
from hotfuse.ir.types import Shape, TensorType
from hotfuse.records import dataclass

TYPICAL = 64  # a size that nobody told
TASK_POINTS = 4096.0
WHOLE_POINTS = 512  # side by side, that are not taken apart
TILE_ROWS, CHUNK_TILES, CHAIN_TILES = 8, 8, 2  # of products and chains, about (`codegen/loop_order`)
WHOLE_ROW, DEAR_ROW = 384, 128  # elements that stay in registers as one block, about, without functions and with some
SQUARE = 16  # elements of each side of what is turned in registers
STRIP = 64  # columns, about, that a task folds where they are many
_AGAIN_STEPS = 4  # of an element of a norm, once its row is folded
# of the operations of norms whose steps wait for each other, where four rows of so many elements go abreast (0.7 to 0.85)
_ABREAST_STEPS, _ABREAST_MOST = {"layer_norm": 0.75, "softmax": 0.8, "log_softmax": 0.8}, 192
_ABREAST = 0.6  # of what a row takes beside its elements, where a few go abreast (layer_norm, softmax; Zen 5)
_SCATTER_STEPS = 64  # of an element that is written far from its neighbours (Zen 5: 0.9 ns)
_TURN_STEPS = 4  # of an element that is turned in registers on its way from or to memory

Number = Callable[[Dim], int]
Far = Callable[[Iterable[Touch], bool], tuple[Touch, ...]]  # some touches and whether they write, from as far as they are


def numbers(sizes: Mapping[str, int]) -> Number:
    """Dims as numbers, at these sizes of their symbols."""
    known: dict[Dim, int] = {}

    def number(dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        found = known.get(dim)
        if found is None:
            given = {s.name: sizes.get(s.name, max(s.minimum, TYPICAL)) for s in symbols_of((dim,))}
            result = substitute(dim, given)
            # where nobody told, the typical size may be too small for what is taken from it
            found = known[dim] = max(1, result) if isinstance(result, int) else TYPICAL
        return found

    return number


@dataclass(frozen=True, eq=False, slots=True)
class _Loops:
    """What nodes are amid loops over some points, by their ids: how often each is computed for an element of its result, and
    whether it makes one number for each row. State: those that were asked for."""

    domain: tuple[int, ...]
    times: dict[str, float]
    are_rows: dict[str, bool]


_Read = tuple[str, str, Touch | None]  # a value, whose memory it is, and what reading it touches


class Analyzer:
    """State: what was found of sizes, of nodes, which many groups share, and of groups: tasks and other loops are edits that
    leave a group its nodes, so the same work is only cut otherwise."""

    def __init__(
        self, graph: Graph, values: Mapping[str, Value], layouts: Mapping[str, Layout], sizes: Mapping[str, int]
    ) -> None:
        self._graph, self._values, self._layouts = graph, values, layouts
        self._number = numbers(sizes)
        self._weights = {*graph.weights, *graph.constants}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._touches: dict[tuple[str, int], Touch] = {}
        self._accesses: dict[str, int] = {}
        self._reads: dict[str, tuple[_Read, ...]] = {}
        self._uses: dict[tuple[str, float], tuple[float, Use]] = {}
        self._loops: dict[tuple[str, Shape, tuple[int, ...]], _Loops] = {}
        self._works: dict[tuple[Hashable, ...], tuple[Fused, Work]] = {}

    def work(self, group: Fused, far: Far | None = None) -> Work:
        """Of one group, its bytes from as `far` as that says of what it reads and of what it writes. `located` knows of those
        of a whole plan."""
        variant = group.variant if group.variant in (ACROSS, ABREAST) else ""  # others only cut it otherwise
        key = (id(group.nodes), group.kind, group.domain, group.folded, group.placed, group.again, len(group.links), variant)
        known = self._works.get(key)
        if known is None:  # the group is kept as well: nobody else gets the id of its nodes
            known = self._works[key] = group, self._counted(group)
        work = known[1]
        tasks = max(1.0, self._tasks(group, work.points, max(1.0, work.row), max(1.0, work.inner)))  # of nothing as well
        lanes, cut = self._lanes(group, work.points, tasks, work.is_down), _cut(work.points, tasks)
        if far is None:
            return replace(work, tasks=tasks, lanes=lanes, cut=cut)
        reads, writes = far(work.reads, False), far(work.writes, True)
        return replace(work, tasks=tasks, lanes=lanes, cut=cut, reads=reads, writes=writes)

    def _counted(self, group: Fused) -> Work:
        """In one piece."""
        inside = {name for node in group.nodes for name in node.outputs}
        reads: dict[str, Touch] = {}
        for node in group.computing:
            for name, root, touch in self._reads_of(node):
                if touch is not None and root not in inside and name not in reads:
                    reads[name] = touch
        way = STRIDED if group.placed else IN_ORDER
        results = results_of(group, self._graph, self._layouts)
        writes = [self._touch(name, way) for name in results]
        loops = self._loops_of(group)
        domain = loops.domain
        points = product_of(domain)
        row = self._row(group, domain)
        inner = self._inner(group, domain, reads.values())
        is_down = bool(group.folded) and len(group.domain) - 1 not in group.folded
        is_across = group.variant == ACROSS
        products, uses = 0.0, []
        walks = self._walks(group, results, row, is_down, is_across)
        for node in group.computing:
            times = walks.times.get(node.id, 1) if walks else 1
            often = self._times(node, group, loops)
            of_products, use = self._arithmetic(node, often * times if times > 1 and is_pointwise(node) else often)
            products += of_products
            if walks and times > 1 and node.op in NORMS:  # what it makes of its folds is computed again
                uses.append(Use("again", (times - 1) * use.elements, _AGAIN_STEPS))
            if use.elements:
                is_single = not is_down and not is_across and self._is_row_value(node, group, loops)
                rows = points / max(row, 1.0) if node.op in FOLDS and not is_down and not is_across else 0.0
                steps = use.steps
                if group.variant == ABREAST:
                    rows *= _ABREAST
                    steps *= _ABREAST_STEPS.get(node.op, 1.0) if domain[-1] <= _ABREAST_MOST else 1.0
                uses.append(Use(use.op, use.elements, steps, rows, is_single))
        if is_across:  # the values of rows lie side by side, too
            turned = sum(t.bytes / t.element for t in (*reads.values(), *writes) if t.bytes / t.element == points)
            inner = points / max(1, domain[-1])
            uses.append(Use("turn", turned, _TURN_STEPS))
        if group.placed and group.folded:  # rows that are walked along are written element by element
            uses.append(Use("scatter", sum(t.bytes / t.element for t in writes), _SCATTER_STEPS))
        return Work(
            group.kind,
            points,
            row,
            inner,
            products,
            sum(use.elements * use.steps for use in uses if not use.is_single),
            tuple(reads.values()),
            tuple(writes),
            1.0,
            max(1, len(group.links)),
            max((touch.element for touch in writes), default=4),  # of what is computed: indices are as wide as they like
            sum(use.elements * use.steps for use in uses if use.is_single),
            walks.count if walks else 0,
            is_down,
            tuple(uses),
            self._matrices(group),
            read_again=sum((times - 1) * reads[name].bytes for name, times in walks.reads.items() if name in reads)
            if walks
            else 0.0,
        )

    def tasks_of(self, group: Fused) -> float:
        """How many pieces threads can share."""
        return self.work(group).tasks

    def _walks(self, group: Fused, results: Sequence[str], row: float, is_down: bool, is_across: bool) -> Walks | None:
        """Along its rows; None where nothing is folded."""
        if group.kind != "rows" or not group.folded:
            return None
        if not LEVELS.keys() >= {node.op for node in group.computing if node.op in FOLDS}:
            return None
        loops = self._loops_of(group)
        is_dear = any(node.op in KEPT and not self._is_row_value(node, group, loops) for node in group.computing)
        is_whole = is_across or group.variant == ABREAST or (not is_down and row <= (DEAR_ROW if is_dear else WHOLE_ROW))
        found = walks_of(group.computing, results, lambda node: self._is_row_value(node, group, loops), self._root, not is_down)
        return replace(found, times={}, reads={}) if is_whole else found

    def located(self, plan: Sequence[Work]) -> list[Work]:
        """The work of groups that run in this order, with where each of them has its bytes."""
        names = {touch.name for work in plan for touch in (*work.reads, *work.writes)}
        outputs = {self._root(name) for name in self._graph.outputs}
        return located(plan, {name: self._bytes(name) for name in names}, {*self._graph.inputs, *outputs, *self._weights})

    def _bytes(self, name: str) -> float:
        type = self._values[name].type if name in self._values else None
        return product_of(self._shape(name)) * type.dtype.bytes if isinstance(type, TensorType) else 0.0

    def _inner(self, group: Fused, domain: Sequence[int], reads: Iterable[Touch]) -> float:
        """How many points lie side by side: all, where each of them has elements of its own wherever something is read."""
        if not domain:
            return 1.0
        points = product_of(domain)
        size = {touch.name: touch.bytes / touch.element for touch in reads}
        plain = group.kind in ("rows", "copy") and not group.folded and not group.placed
        if not plain or any(touch.access != IN_ORDER for touch in reads):
            return float(domain[-1])
        return max(float(domain[-1]), min([points, *(self._run(name, domain) for name in size if size[name] != 1.0)]))

    def _run(self, name: str, domain: Sequence[int]) -> float:
        """How many points on end read elements of a value that lie on end."""
        run = 1.0
        for mine, theirs in zip(reversed(self._shape(name)), reversed(domain), strict=False):
            if mine != theirs:
                break
            run *= mine
        return run

    def _loops_of(self, group: Fused) -> _Loops:
        key = group.kind, group.domain, group.folded
        found = self._loops.get(key)
        if found is None:
            found = self._loops[key] = _Loops(tuple(map(self._number, group.domain)), {}, {})
        return found

    def _is_row_value(self, node: Node, group: Fused, loops: _Loops) -> bool:
        """Whether a node computes one number for each row: of what is folded, or of what lies side by side."""
        found = loops.are_rows.get(node.id)
        if found is None:
            found = False
            if group.kind == "rows" and is_pointwise(node):
                shape = self._shape(node.outputs[0])
                missing = len(group.domain) - len(shape)
                along = group.folded or _last(loops.domain)
                found = bool(along) and missing >= 0 and all(axis < missing or shape[axis - missing] == 1 for axis in along)
            loops.are_rows[node.id] = found
        return found

    def _row(self, group: Fused, domain: Sequence[int]) -> float:
        """How many points, or products, are folded into one."""
        for node in group.nodes:
            if node.op == "panel_matmul":
                return float(self._shape(node.inputs[0])[-1])
            if node.op == "attention":
                return float(self._shape(node.inputs[1])[-2])
        return product_of([domain[axis] for axis in group.folded])

    def _matrices(self, group: Fused) -> float:
        """Of products: those whose second operands differ share no rows."""
        packed = [node.inputs[1] for node in group.nodes if node.op == "panel_matmul"]
        return max((product_of(self._shape(name)[:-1]) for name in packed), default=1.0)

    def _root(self, name: str) -> str:
        layout = self._layouts.get(name)
        return name if layout is None else layout.root

    def _reads_of(self, node: Node) -> tuple[_Read, ...]:
        found = self._reads.get(node.id)
        if found is None:
            found = self._reads[node.id] = tuple((name, self._root(name), self._read(node, name)) for name in node.uses)
        return found

    def _read(self, node: Node, name: str) -> Touch | None:
        if not isinstance(self._values[name].type, TensorType):
            return None
        if OPS[node.op].pattern is Pattern.GATHER and name == node.inputs[0]:
            out = self._touch(node.outputs[0], GATHERED)
            table = self._touch(name, GATHERED)
            return Touch(table.name, min(out.bytes, table.bytes), 0.0, table.element, GATHERED, table.is_weight)
        return self._touch(name, self._access(name))

    def _access(self, name: str) -> int:
        found = self._accesses.get(name)
        if found is None:
            found = self._accesses[name] = self._access_of(self._layouts.get(name))
        return found

    def _access_of(self, layout: Layout | None) -> int:
        if layout is None:
            return IN_ORDER
        for size, stride in zip(reversed(layout.shape), reversed(layout.strides), strict=True):
            if self._number(size) != 1:
                return IN_ORDER if stride in (0, 1) else STRIDED
        return IN_ORDER

    def _touch(self, name: str, access: int) -> Touch:
        found = self._touches.get((name, access))
        if found is None:
            type = self._values[name].type
            assert isinstance(type, TensorType)
            root = self._root(name)
            bytes = product_of(self._shape(name)) * type.dtype.bytes
            found = Touch(root, bytes, 0.0, max(1, type.dtype.bytes), access, root in self._weights)
            self._touches[name, access] = found
        return found

    def _shape(self, name: str | None) -> tuple[int, ...]:
        found = self._shapes.get(name or "")
        if found is None:
            type = self._values[name or ""].type
            assert isinstance(type, TensorType)
            found = self._shapes[name or ""] = tuple([self._number(d) for d in type.shape or ()])
        return found

    def _times(self, node: Node, group: Fused, loops: _Loops) -> float:
        """How often a node is computed for each element of its result: those that are narrower than the points, for each of
        them, but for those that are a row's."""
        found = loops.times.get(node.id)
        if found is None:
            found = 1.0
            if group.kind == "rows" and is_pointwise(node):
                shape, domain = self._shape(node.outputs[0]), loops.domain
                missing = len(domain) - len(shape)
                once = group.folded or (_last(domain) if self._is_row_value(node, group, loops) else ())
                spread = [d for a, d in enumerate(domain) if (a < missing or shape[a - missing] == 1) and a not in once]
                found = product_of(spread) if missing >= 0 else 1.0
            loops.times[node.id] = found
        return found

    def _arithmetic(self, node: Node, times: float = 1.0) -> tuple[float, Use]:
        """Multiply-adds of products, and other operations on elements."""
        found = self._uses.get((node.id, times))
        if found is None:
            found = self._uses[node.id, times] = arithmetic_of(node, times, self._shape)
        return found

    def _tasks(self, group: Fused, points: float, row: float, inner: float) -> float:
        """How many pieces threads can share."""
        if group.kind in ("product", "chain"):
            columns = max(1.0, float(self._number(group.domain[-1])))
            tiles = math.ceil(points / columns / TILE_ROWS)
            if group.kind == "chain":
                return float(math.ceil(tiles / max(1, CHAIN_TILES >> group.grain)))
            panel = next(node.attrs["panel"] for node in group.nodes if node.op == "panel_matmul")
            chunk = max(1, min(CHUNK_TILES, tiles) >> group.grain)
            return float(math.ceil(tiles / chunk) * math.ceil(columns / panel))
        if group.kind == "attention":
            return max(1.0, points / TASK_POINTS * 4)
        return self._row_tasks(group, points, row, inner)

    def _lanes(self, group: Fused, points: float, tasks: float, is_down: bool) -> int:
        """Products of few rows have panels of columns for tasks, and folds down the columns have columns."""
        if tasks <= 1:
            return ALONE
        rows = points / max(1.0, float(self._number(group.domain[-1]))) if group.domain else 1.0
        few = group.kind == "product" and rows <= TILE_ROWS * max(1, CHUNK_TILES >> group.grain)
        return BY_COLUMNS if is_down or few else BY_ROWS

    def _row_tasks(self, group: Fused, points: float, row: float, inner: float) -> float:
        """As `codegen/lower_rows` makes them: so many points of a task lie side by side, and it has as many such rows as it
        takes to be long enough."""
        most = TASK_POINTS / 4**group.grain
        is_down = bool(group.folded) and len(group.domain) - 1 not in group.folded
        if group.folded and not is_down:
            return float(math.ceil(points / row / max(1.0, most // row)))
        if (square := self._square(group)) is not None:
            return float(math.ceil(square[0] / SQUARE) * math.ceil(square[1] / max(SQUARE, most // SQUARE)))
        along = inner if inner <= WHOLE_POINTS else min(inner, most)
        if group.variant == STRIPS:
            along = min(inner, float(STRIP >> group.grain))
        many = max(1.0, most // max(1.0, row * along))
        return float(math.ceil(points / row / inner / many) * math.ceil(inner / along))

    def _square(self, group: Fused) -> tuple[float, float] | None:
        """Of what is turned in registers, the elements along memory and across it; None where nothing is."""
        if group.folded or group.kind not in ("rows", "copy"):
            return None
        for node in group.computing:
            for name in node.uses:
                layout = self._layouts.get(name)
                if layout is not None and self._access(name) == STRIDED and 1 in layout.strides:
                    sizes = [self._number(size) for size in layout.shape]
                    along = sizes[layout.strides.index(1)]
                    return float(along), product_of(sizes) / max(1, along)
        return None


def analyse(
    groups: Sequence[Fused],
    graph: Graph,
    values: Mapping[str, Value],
    layouts: Mapping[str, Layout],
    sizes: Mapping[str, int],
) -> list[Work]:
    """What each group does, in the order they run."""
    analyzer = Analyzer(graph, values, layouts, sizes)
    return analyzer.located([analyzer.work(group) for group in groups])


def _last(domain: Sequence[int]) -> tuple[int, ...]:
    """The axis of what lies side by side; none where that is one point."""
    return (len(domain) - 1,) if domain and domain[-1] > 1 else ()


def _cut(points: float, tasks: float) -> float:
    """Of the points, the part that the first of two threads has: whole tasks, all as long but the last one."""
    if tasks < 2:
        return 1.0
    each = points / tasks if points <= TASK_POINTS else max(points / tasks, min(TASK_POINTS, points / (tasks - 1)))
    return min(1.0, tasks // 2 * each / max(points, 1.0))
