"""Legality: what may be one kernel. It alone may veto; whether that is a good idea, criteria and predictions say.

    join    two groups over the same points, one reading the other at its own place, or both reading the same: in registers
    link    a group that reads whole rows of the one before it: through a tile that stays in the nearest cache
    place   a group and the copy that puts its result into another order: the copy is written at once
    through a copy and an elementwise group that reads it: elements are read where they were, and go on in the copy's order
    repeat  a group and a cheap one that it reads and that others read, too: each computes it for itself
    split   a group that comes apart into two
    vary    a group as it is, in other loops

Every function answers with the group that would be made, or with a Refusal that says why there can be none. Cycles are the
plan's affair (`fusion/draft`): whether two groups may be one also depends on what lies between them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from hotfuse.fusion.chains import link_refusal
from hotfuse.fusion.rules import FOLDS, MAKES_ROWS, PLACED, Fused, is_pointwise, results_of
from hotfuse.fusion.splits import Halves, halves_of, split_refusal
from hotfuse.fusion.variants import variant_refusal
from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.layout import Layout, broadcast_strides, contiguous_strides, plain, point_strides
from hotfuse.ir.types import Shape, TensorType, numel
from hotfuse.records import dataclass

MOST_NODES = 64  # of one group: code of more takes long to compile, and their values do not fit the registers
_VIEWS = ("transpose", "reshape", "squeeze", "unsqueeze")


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str


Verdict = Fused | Refusal


@dataclass(frozen=True, slots=True)
class _Points:
    """What a group goes over."""

    domain: Shape
    folded: tuple[int, ...] = ()
    reverse: bool = False


class Legality:
    """State: places of nodes in the graph, which groups keep."""

    def __init__(self, graph: Graph, values: Mapping[str, Value], layouts: Mapping[str, Layout]) -> None:
        self.graph, self.values, self.layouts = graph, values, layouts
        self._order = {node.id: place for place, node in enumerate(graph.nodes)}

    def join(self, first: Fused, second: Fused) -> Verdict:
        """Both in one, values handed on in registers, in the loops that one of them had, where it can go in these. The first is
        the one that does not read the other."""
        points = self._points(first, second)
        if isinstance(points, Refusal):
            return points
        if len(first.nodes) + len(second.nodes) > MOST_NODES:
            return Refusal(f"more than {MOST_NODES} operators in one kernel take too long to compile")
        refusal = self._crossing(first, second, points)
        if refusal is not None:
            return refusal
        kind = "product" if "product" in (first.kind, second.kind) else "rows"
        made = Fused(
            kind,
            self._in_order({node.id: node for node in (*first.nodes, *second.nodes)}),
            points.domain,
            points.folded,
            points.reverse,
            again=tuple(dict.fromkeys((*first.again, *second.again))),
            team=second.team,
            parts=(*_parts(first), *_parts(second)),
        )
        refusal = self._writable(made, points)
        if refusal is not None:
            return refusal
        variant = next((group.variant for group in (first, second) if group.variant), "")
        varied = self.vary(made, variant) if variant else made
        return made if isinstance(varied, Refusal) else varied

    def link(self, first: Fused, second: Fused) -> Verdict:
        """Both in one, a few rows at a time."""
        for group in (first, second):
            if group.placed or group.again:
                return Refusal("a link of a chain computes and writes one result, in order")
        reason = link_refusal(first, second, self.graph, self.values, self.layouts)
        if reason:
            return Refusal(reason)
        links = tuple(replace(link, variant="") for group in (first, second) for link in (group.links or (group,)))
        nodes = tuple(node for link in links for node in link.nodes)
        return Fused("chain", nodes, second.domain, links=links, team=second.team, parts=(*_parts(first), *_parts(second)))

    def place(self, group: Fused, copy: Fused) -> Verdict:
        """A group that writes its result where the copy would put it."""
        if copy.kind != "copy" or len(copy.nodes) > 1 or group.kind not in ("rows", "product") or group.placed:
            return Refusal("only a copy can be written at once, and only by rows and products")
        inside = {name for node in group.nodes for name in node.outputs}
        (node,) = copy.nodes
        views: list[Node] = [node]
        name = node.inputs[0] or ""
        while name not in inside:
            made = self.graph.producer.get(name)
            if made is None or made.op not in _VIEWS:
                return Refusal(f"{name} is copied, which the group does not make, or not as it is")
            views.append(made)
            name = made.inputs[0] or ""
        if self._shape(name) != group.domain:
            return Refusal("what is copied is not computed at every point")
        chain = [name, *(view.id for view in reversed(views))]
        for value, following in itertools.pairwise(chain):
            others = (reader.id for reader in self.graph.consumers.get(value, ()) if reader.id not in inside)
            if value in self.graph.kept or any(reader != following for reader in others):
                return Refusal(f"{value} is read in its own order as well")
        nodes = (*group.nodes, *reversed(views))
        return replace(group, nodes=nodes, placed=len(views), variant="", parts=(*_parts(group), copy))

    def through(self, copy: Fused, reader: Fused) -> Verdict:
        """An elementwise group that reads what is copied itself. It goes over the points of what is copied, which are those of
        the copy one after the other: all else that it reads has to lie in this order."""
        if copy.kind != "copy" or reader.kind != "rows" or reader.folded or reader.placed or reader.again:
            return Refusal("only elementwise operators read what is copied in its own order")
        if len(copy.nodes) + len(reader.nodes) > MOST_NODES:
            return Refusal(f"more than {MOST_NODES} operators in one kernel take too long to compile")
        inside = {node.id for node in (*copy.nodes, *reader.nodes)}
        source = next(node.inputs[0] or "" for node in copy.nodes if node.op == "reshape")
        for node in reader.nodes:
            if not is_pointwise(node) or self._shape(node.id) != copy.domain:
                return Refusal(f"{node.op} does not go over the elements of the copy one by one")
            for name in node.uses:
                if name not in inside and not self._lies_in_order(name, copy.domain, self.layouts[source].shape):
                    return Refusal(f"{node.op} reads {name} in another order than the copy's")
        nodes = self._in_order({node.id: node for node in (*copy.nodes, *reader.nodes)})
        return Fused("copy", nodes, copy.domain, team=reader.team, parts=(*_parts(copy), *_parts(reader)))

    def _lies_in_order(self, name: str, domain: Shape, points: Shape) -> bool:
        """Whether a value is one number, of no more axes than the points, or has its elements side by side in their order."""
        layout, shape = self.layouts.get(name), self._shape(name)
        if layout is None or shape is None:
            return False
        if numel(shape) == 1:
            return len(shape) <= len(points)
        return shape == domain and layout.strides == contiguous_strides(domain)

    def repeat(self, cheap: Fused, reader: Fused) -> Verdict:
        """A reader that computes what it reads for itself."""
        if cheap.kind != "rows" or cheap.folded or not all(map(is_pointwise, cheap.nodes)):
            return Refusal("only elementwise operators are computed again")
        made = self.join(cheap, reader)
        if isinstance(made, Refusal):
            return made
        again = (name for node in cheap.nodes for name in node.outputs)
        return replace(made, again=tuple(dict.fromkeys((*made.again, *again))))

    def vary(self, group: Fused, variant: str) -> Verdict:
        """The same nodes in other loops. Where no code can be made of those, the group serves as it is."""
        reason = variant_refusal(group, variant, self.values)
        return Refusal(reason) if reason else replace(group, variant=variant, parts=group.parts if group.variant else (group,))

    def split(self, group: Fused) -> tuple[Halves, ...] | Refusal:
        """The ways to make two of a group."""
        reason = split_refusal(group)
        if reason:
            return Refusal(reason)
        found = []
        for first, second in halves_of(group, self.values, self.layouts):
            points = _Points(first.domain, first.folded, first.reverse)
            if first.kind != "rows" or self._writable(first, points) is None:
                found.append((first, second))
        return tuple(found) or Refusal("nothing but values of its rows follows what it folds")

    # what two groups have in common

    def _points(self, first: Fused, second: Fused) -> _Points | Refusal:
        for group in (first, second):
            if group.kind not in ("rows", "product"):
                return Refusal(f"a kernel of kind {group.kind} takes nothing else in")
            if group.placed:
                return Refusal("its result is written in another order")
        if first.kind == second.kind == "product":
            return Refusal("two products have accumulators of their own")
        if "product" in (first.kind, second.kind):
            return self._around_product(first, second)
        ways = {(group.folded, group.reverse) for group in (first, second) if group.folded}
        if len(ways) > 1:
            return Refusal("they fold rows along different axes")
        folded, reverse = ways.pop() if ways else ((), False)
        if first.domain == second.domain:
            return _Points(first.domain, folded, reverse)
        for wide, narrow in ((first, second), (second, first)):
            if _spreads(narrow.domain, wide.domain) and not narrow.folded:
                if not all(map(is_pointwise, narrow.nodes)):
                    return Refusal("what goes over fewer points is not elementwise")
                return _Points(wide.domain, folded, reverse)
        return Refusal(f"they go over different points, {_show(first.domain)} and {_show(second.domain)}")

    def _around_product(self, first: Fused, second: Fused) -> _Points | Refusal:
        product, rows = (first, second) if first.kind == "product" else (second, first)
        if rows.folded:
            return Refusal("a tile of a product holds no whole rows to fold")
        if any(node.op in PLACED for node in rows.nodes):
            return Refusal("a product's tiles do not know where their points are")
        if rows.domain != product.domain:
            return Refusal(f"they go over different points, {_show(first.domain)} and {_show(second.domain)}")
        return _Points(product.domain)

    def _crossing(self, first: Fused, second: Fused, points: _Points) -> Refusal | None:
        """Whether the second reads what the first makes other than at its own place."""
        made = {name for node in first.nodes for name in node.outputs}
        own = {name for node in second.nodes for name in node.outputs}
        for node in second.nodes:
            for name in node.uses:
                if name in own:
                    continue
                layout = self.layouts.get(name)
                root = name if layout is None else layout.root
                if root not in made:
                    continue
                if not is_pointwise(node) and node.op not in FOLDS:
                    return Refusal(f"{node.op} reads {root} from memory, in a way of its own")
                shape = self._shape(root)
                if layout is None or shape is None or len(layout.shape) > len(points.domain):
                    return Refusal(f"{name} has more axes than the points")
                if any(n.op == "concat" for n in second.nodes):
                    return Refusal("the parts of a concat are read from memory")
                missing = len(points.domain) - len(layout.shape)
                whole = all(a in (1, b) for a, b in zip(layout.shape, points.domain[missing:], strict=True))
                strides = broadcast_strides(layout, points.domain)
                if not whole or layout.offset != 0 or strides != point_strides(shape, points.domain, points.folded):
                    return Refusal(f"{node.op} reads other elements of {root} than those of its own points")
        return None

    def _writable(self, made: Fused, points: _Points) -> Refusal | None:
        """What others read must be written by one point, or by one row."""
        rows = tuple(1 if axis in points.folded else size for axis, size in enumerate(points.domain))
        dropped = tuple(size for axis, size in enumerate(points.domain) if axis not in points.folded)
        for name in results_of(made, self.graph, self.layouts):
            shape = self._shape(name)
            by_rows = bool(points.folded) and shape in (rows, dropped) and self._is_rows_value(name, shape, points)
            if shape != points.domain and not by_rows:
                return Refusal(f"{name} is read by others, and many points would compute each of its elements")
        return None

    def _is_rows_value(self, name: str, shape: Shape, points: _Points) -> bool:
        """Whether a value that has a row's shape is one: what merely goes over fewer points may have that shape by accident."""
        if self.graph.producer[name].op in MAKES_ROWS:
            return True
        return broadcast_strides(plain(name, shape), points.domain) == point_strides(shape, points.domain, points.folded)

    def _shape(self, name: str) -> Shape | None:
        type = self.values[name].type
        return type.shape if isinstance(type, TensorType) else None

    def _in_order(self, nodes: Mapping[str, Node]) -> tuple[Node, ...]:
        return tuple(sorted(nodes.values(), key=lambda node: self._order[node.id]))


def _parts(group: Fused) -> tuple[Fused, ...]:
    return group.parts or (group,)


def _spreads(narrow: Shape, wide: Shape) -> bool:
    """Whether a shape is broadcast to the other, and not the same."""
    missing = len(wide) - len(narrow)
    return missing >= 0 and all(a in (1, b) for a, b in zip(narrow, wide[missing:], strict=True))


def _show(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "one"
