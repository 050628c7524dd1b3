"""Fusion by rules: chains that read each other's results alone become one group around an anchor.

    product     panel_matmul, then elementwise nodes over its result
    attention   attention, then a view and a copy that only put its heads side by side
    rows        elementwise nodes, gathers, pads, windows, and norms, reductions or running folds over the same axes: one domain
    copy        a reshape that no strides express
    concat      inputs side by side, each copied to its place
    pack        the columns of a product's second operand, where they are no weights
    chain       products and norms over the same rows, each reading what the one before it wrote (`fusion/chains`)

A node joins the group of a producer when it is the only reader of that result, so a group has one result and no cycle can
arise. Views need no kernel: whoever reads them reads their root through a layout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import field

from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.layout import Layout
from hotfuse.ir.op import OPS, Pattern
from hotfuse.ir.types import DTYPES, DType, Shape, TensorType
from hotfuse.records import dataclass

MEMORY_TYPES: frozenset[DType] = frozenset(
    DTYPES[n] for n in ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool")
)
_NORMS = ("layer_norm", "rms_norm", "softmax", "log_softmax")
_REDUCTIONS = (
    "reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_any", "reduce_all", "logsumexp",
)  # fmt: skip
_WINDOWS = ("max_pool", "average_pool", "lp_pool")
# whose results are read through access maps of their own
_READS = ("gather", "gather_elements", "gather_nd", "one_hot", "pad", *_WINDOWS)
PLACED = (*_READS, "concat", "trilu")  # which need to know where a point is in the whole domain
MOST_PARTS = 4  # of a concat that is read where its inputs are
_PLACES = ("argmax", "argmin")
_SCANS = ("cumsum", "cumprod")
FOLDS = (*_NORMS, *_REDUCTIONS, *_PLACES, *_SCANS)
MAKES_ROWS = (*_REDUCTIONS, *_PLACES, *_WINDOWS)  # a value for each row
ALL = -1  # threads
NOBODY: frozenset[str] = frozenset()
# eager's ndtr loses digits where 1 + erf cancels, and nobody else's code loses the same ones
_NOT_NATIVE = ("lgamma", "digamma", "ndtr")


@dataclass
class Cluster:
    """A group while it grows."""

    kind: str
    nodes: list[Node]
    domain: Shape
    folded: tuple[int, ...] = ()
    reverse: bool = False


@dataclass(frozen=True)
class Fetch:
    """A value that another group goes through from front to back, and how many of its lines each step of a product's sums
    brings near meanwhile (`fusion/weaving`)."""

    value: str
    lines: int


@dataclass(frozen=True)
class Fused:
    """Nodes that become one kernel: `kind` says which, `domain` the points it computes, `folded` the axes that it reduces or
    runs along, from their ends where `reverse`."""

    kind: str
    nodes: tuple[Node, ...]
    domain: Shape = field(default=())
    folded: tuple[int, ...] = ()
    reverse: bool = False
    links: tuple[Fused, ...] = ()  # of a chain, in order
    placed: int = 0  # so many of the last nodes, views and a copy, only say where the result goes
    again: tuple[str, ...] = ()  # what other groups make for themselves as well: nobody reads it from memory
    grain: int = 0  # how many times finer its tasks are than they would be
    variant: str = ""  # other loops than those that a model of bytes chooses (`fusion/variants`)
    team: int = 0  # threads of its plan: 1, all of them (ALL), or as many as the amount of work speaks for (0)
    row: int = 0  # groups that follow each other and have the same number here, not 0, run side by side
    fetches: tuple[Fetch, ...] = ()  # of a product that is woven with the other group of its row: what that reads
    parts: tuple[Fused, ...] = ()  # the groups that it was made of: what serves where it cannot be made

    @property
    def computing(self) -> tuple[Node, ...]:
        """The nodes that compute something."""
        return self.nodes[: -self.placed] if self.placed else self.nodes


def results_of(group: Fused, graph: Graph, layouts: Mapping[str, Layout]) -> list[str]:
    """What others read of a group, in order. What is computed again elsewhere is read there as well."""
    again = set(group.again)
    made = [name for node in group.nodes for name in node.outputs if name not in again]
    inside = frozenset(made)
    return [name for name in made if is_read_outside(name, inside, graph, layouts)]


def is_read_outside(name: str, inside: Set[str], graph: Graph, layouts: Mapping[str, Layout]) -> bool:
    """Whether a result or a view of it is the model's, or read by a node that is not inside."""
    if name in graph.kept:
        return True
    if graph.readers.get(name, NOBODY) <= inside:
        return False
    for reader in graph.consumers.get(name, ()):
        if reader.id in inside:
            continue
        layout = layouts.get(reader.id)
        is_view = layout is not None and layout.root != reader.id and len(reader.outputs) == 1
        if not is_view or is_read_outside(reader.id, inside, graph, layouts):
            return True
    return False


def fuse(graph: Graph, values: Mapping[str, Value], layouts: Mapping[str, Layout], apart: Collection[str] = ()) -> list[Fused]:
    """Groups in an order in which they can run; nodes that are views or not for native code are in none, and those named in
    `apart` are alone in theirs."""
    clusters: dict[str, Cluster] = {}  # by the id of the last node
    readers = {name: len(nodes) for name, nodes in graph.consumers.items()}

    def alone(name: str) -> bool:
        return readers.get(name, 0) == 1 and name not in graph.kept and name not in apart

    for node in graph.nodes:
        made = _cluster_of(node, values, layouts)
        if made is None:
            continue
        if node.id in apart:
            clusters[node.id] = made
            continue
        if made.kind == "copy":
            placed = _placed_attention(graph, node, clusters, alone)
            if placed is not None:
                del clusters[placed[0].id]
                clusters[node.id] = Cluster("attention", placed, made.domain)
                continue
        if made.kind == "concat" and _is_read_pointwise(graph, node, values, alone):
            made = Cluster("rows", [*_parts(node, clusters, values, alone), node], made.domain)
            clusters[node.id] = made
            continue
        for name in dict.fromkeys(node.uses):
            cluster = clusters.get(name)
            if cluster is None or not alone(name) or not _may_join(cluster, made, node, values):
                continue
            if made.kind in ("product", "attention") or node.op in _READS:  # these read memory: they only begin groups
                continue
            if cluster.kind == "rows" or made.kind == "rows":
                made = _joined(cluster, made)
                del clusters[name]
        clusters[node.id] = made
    order = {node.id: place for place, node in enumerate(graph.nodes)}
    return [
        Fused(c.kind, tuple(sorted(c.nodes, key=lambda n: order[n.id])), c.domain, c.folded, c.reverse)
        for id, c in sorted(clusters.items(), key=lambda item: order[item[0]])
    ]


def _placed_attention(
    graph: Graph, copy: Node, clusters: Mapping[str, Cluster], alone: Callable[[str], bool]
) -> list[Node] | None:
    """An attention, the views of its result and this copy of them, if nobody else reads any: it then writes the copy itself."""
    chain, name = [copy], copy.inputs[0] or ""
    while alone(name):
        node = graph.producer.get(name)
        if node is None:
            return None
        chain.append(node)
        if node.op == "attention" and node.id in clusters:
            return chain[::-1]
        if node.op not in ("transpose", "reshape", "squeeze", "unsqueeze"):
            return None
        name = node.inputs[0] or ""
    return None


def _is_read_pointwise(graph: Graph, concat: Node, values: Mapping[str, Value], alone: Callable[[str], bool]) -> bool:
    """Whether the one reader of a concat is elementwise over the same points: it then reads the inputs where they are."""
    if not alone(concat.id) or sum(1 for _ in concat.uses) > MOST_PARTS:
        return False
    (reader,) = graph.consumers[concat.id]
    return is_pointwise(reader) and _shape(reader.id, values) == _shape(concat.id, values)


def _parts(concat: Node, clusters: dict[str, Cluster], values: Mapping[str, Value], alone: Callable[[str], bool]) -> list[Node]:
    """The nodes of elementwise groups that only feed one input of a concat; they are no groups any more."""
    found: list[Node] = []
    for name in dict.fromkeys(concat.uses):
        cluster = clusters.get(name)
        if cluster is None or not alone(name) or cluster.domain != _shape(name, values):
            continue
        if cluster.kind == "rows" and not cluster.folded and not any(n.op in PLACED for n in cluster.nodes):
            found += cluster.nodes
            del clusters[name]
    return found


def _joined(first: Cluster, second: Cluster) -> Cluster:
    """Both in one; a product stays what it is."""
    kind = "product" if "product" in (first.kind, second.kind) else "rows"
    folding = first if first.folded else second
    return Cluster(kind, [*first.nodes, *second.nodes], folding.domain, folding.folded, folding.reverse)


def _may_join(cluster: Cluster, made: Cluster, node: Node, values: Mapping[str, Value]) -> bool:
    if cluster.domain != made.domain:
        return False
    if {cluster.kind, made.kind} == {"rows"}:
        ways = {(c.folded, c.reverse) for c in (cluster, made) if c.folded}
        return len(ways) < 2 and not _drops_axes(cluster, values)
    if cluster.kind == "product" and made.kind == "rows":
        return not made.folded and not any(n.op in PLACED for n in made.nodes)
    if cluster.kind == "rows" and made.kind == "product":  # the product came first into what grows now
        return not cluster.folded and not any(n.op in PLACED for n in cluster.nodes)
    return False


def _drops_axes(cluster: Cluster, values: Mapping[str, Value]) -> bool:
    """Whether the cluster's last result is a row's value: what follows has another domain."""
    last = cluster.nodes[-1]
    return OPS[last.op].pattern is Pattern.REDUCTION and not last.attrs.get("keepdims", False)


def _cluster_of(node: Node, values: Mapping[str, Value], layouts: Mapping[str, Layout]) -> Cluster | None:
    """The group that a node begins; None if it is a view, or nothing for native code."""
    shape = _shape(node.id, values)
    if shape is None or not all(_fits(n, values) for n in (*node.uses, *node.outputs)):
        return None
    if values[node.id].contents is not None and all(isinstance(d, int) for d in values[node.id].contents or ()):
        return None
    if node.op == "panel_matmul":
        return Cluster("product", [node], shape)
    if node.op in ("attention", "pack", "concat"):
        return Cluster(node.op, [node], shape)
    if node.op == "reshape" and layouts[node.id].root == node.id:
        return Cluster("copy", [node], shape)
    if is_pointwise(node):
        return Cluster("rows", [node], shape)
    if node.op in _WINDOWS:
        return Cluster("rows", [node], (*shape, *node.attrs["kernel"]), tuple(range(len(shape), 2 * len(shape) - 2)))
    if node.op in (*_READS, "trilu"):
        return Cluster("rows", [node], shape)
    if node.op in _NORMS:
        return _norm(node, shape)
    if node.op in (*_REDUCTIONS, *_PLACES):
        return _reduction(node, values)
    if node.op in _SCANS:
        return _running(node, shape)
    return None


def is_pointwise(node: Node) -> bool:
    """Whether each element of the result follows from the elements of operands at the same place."""
    record = OPS[node.op]
    return record.pattern is Pattern.ELEMENTWISE and record.scalar is not None and node.op not in _NOT_NATIVE


def _norm(node: Node, shape: Shape) -> Cluster | None:
    if not shape:
        return None
    axis = node.attrs.get("axis", -1) % len(shape)
    folded = (axis,) if node.op in ("softmax", "log_softmax") else tuple(range(axis, len(shape)))
    return Cluster("rows", [node], shape, folded)


def _reduction(node: Node, values: Mapping[str, Value]) -> Cluster | None:
    domain = _shape(node.inputs[0] or "", values)
    if not domain:
        return None
    axes = node.attrs.get("axes")
    if node.op in _PLACES:
        axes = None if node.attrs.get("axis") is None else (node.attrs["axis"],)
    found = tuple(sorted({a % len(domain) for a in (range(len(domain)) if axes is None else axes)}))
    return Cluster("rows", [node], domain, found) if found else None


def _running(node: Node, shape: Shape) -> Cluster | None:
    if not shape:
        return None
    return Cluster("rows", [node], shape, (node.attrs.get("axis", 0) % len(shape),), bool(node.attrs.get("reverse", False)))


def _shape(name: str, values: Mapping[str, Value]) -> Shape | None:
    type = values[name].type if name in values else None
    return type.shape if isinstance(type, TensorType) else None


def _fits(name: str, values: Mapping[str, Value]) -> bool:
    type = values[name].type
    return isinstance(type, TensorType) and type.shape is not None and type.dtype in MEMORY_TYPES
