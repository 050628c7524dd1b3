"""A fused group becomes a tile program, written over names of its own.

Values are a0, a1, ... and sizes n0, n1, ... in the order the group names them, so that equal layers of a model give equal
programs, which are written and compiled once. The recipe says which of the graph's values and sizes they stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from hotfuse.codegen.body import Body, Write
from hotfuse.codegen.body_builder import BodyBuilder, make_body
from hotfuse.codegen.chain import Inside, chain
from hotfuse.codegen.loop_order import chain_rows
from hotfuse.codegen.lower_attention import Operands, lower_attention
from hotfuse.codegen.lower_gemm import Fetched, Packing, lower_gemm
from hotfuse.codegen.lower_pack import lower_pack
from hotfuse.codegen.lower_rows import lower_rows
from hotfuse.codegen.recipe import Recipe
from hotfuse.codegen.tile import TileProgram
from hotfuse.errors import TileError
from hotfuse.fusion.rules import Fused, results_of
from hotfuse.hardware.spec import Spec
from hotfuse.ir.dim import Dim, substitute, symbol, symbols_of
from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.layout import Layout, contiguous_strides, plain, reshaped
from hotfuse.ir.types import DType, TensorType, numel

Known = dict[Hashable, tuple[TileProgram, ...]]  # the programs of groups that were lowered, by what those look like


def lower(
    graph: Graph,
    values: Mapping[str, Value],
    layouts: Mapping[str, Layout],
    group: Fused,
    spec: Spec,
    known: Known | None = None,
) -> tuple[Recipe, ...]:
    """The recipes of a group, which may run side by side, or TileError saying why it has none. A group like one in `known`, of
    the same spec, is not lowered again."""
    names = [n for node in group.nodes for n in (*node.uses, *node.outputs)]
    names = list(dict.fromkeys((*names, *(fetch.value for fetch in group.fetches))))
    outputs = results_of(group, graph, layouts)
    renamed = _Renamed(values, layouts, names, outputs)
    roots = {short: root for root, short in renamed.roots.items()}
    looks = None if known is None else renamed.looks(group, outputs)
    programs = None if known is None else known.get(looks)
    if programs is None:
        made = _PROGRAMS[group.kind](renamed, group, outputs, spec)
        programs = made if isinstance(made, tuple) else (made,)
        if known is not None:
            known[looks] = programs
    sizes = {short: name for name, short in renamed.symbols.items()}
    return tuple(
        Recipe(
            program,
            tuple(roots[b.name] for b in program.arguments),
            tuple(symbol(sizes[s], renamed.minimum[s]) for s in program.sizes),
        )
        for program in programs
    )


class _Renamed:
    """The values of a group under short names. State: the tables of names."""

    def __init__(
        self, values: Mapping[str, Value], layouts: Mapping[str, Layout], names: Sequence[str], outputs: Sequence[str]
    ) -> None:
        self.roots: dict[str, str] = {}
        self.symbols: dict[str, str] = {}
        self.minimum: dict[str, int] = {}
        self._dims: dict[str, Dim] = {}
        self._types: dict[str, TensorType] = {}
        self.values: dict[str, Value] = {}
        self.layouts: dict[str, Layout] = {}
        for name in names:
            type = values[name].type
            if not isinstance(type, TensorType) or type.shape is None or name not in layouts:
                raise TileError(f"{name} is no tensor of known rank")
            contents = values[name].contents
            known = None if contents is None else self._all(contents)
            self.values[name] = Value(name, TensorType(type.dtype, self._all(type.shape)), contents=known)
            layout = plain(name, type.shape) if name in outputs else layouts[name]
            root = self.root(layout.root, values)
            self.layouts[name] = Layout(root, self.dim(layout.offset), self._all(layout.shape), self._all(layout.strides))

    def root(self, name: str, values: Mapping[str, Value]) -> str:
        if name not in self.roots:
            self.roots[name] = short = f"a{len(self.roots)}"
            type = values[name].type
            if not isinstance(type, TensorType) or type.shape is None:
                raise TileError(f"{name} is no tensor of known rank")
            self._types[short] = TensorType(type.dtype, self._all(type.shape))
        return self.roots[name]

    def dim(self, dim: Dim) -> Dim:
        for found in symbols_of((dim,)):
            if found.name not in self.symbols:
                self.symbols[found.name] = f"n{len(self.symbols)}"
                self.minimum[self.symbols[found.name]] = found.minimum
                self._dims[found.name] = symbol(self.symbols[found.name])  # 0 or more: equal programs make no other promise
        return substitute(dim, self._dims)

    def _all(self, dims: Sequence[Dim]) -> tuple[Dim, ...]:
        return tuple(self.dim(d) for d in dims)

    def info(self, root: str) -> tuple[DType, Dim]:
        type = self._types[root]
        return type.dtype, numel(type.shape or ())

    def looks(self, group: Fused, outputs: Sequence[str]) -> Hashable:
        """All that the programs of a group depend on, under names that equal groups share; sizes that attributes name, too."""
        number = {name: place for place, name in enumerate(self.values)}
        domains = [group.domain, *(link.domain for link in group.links)]
        return (
            _form(group, number),
            tuple(self._all(domain) for domain in domains),
            tuple((value.type, value.contents) for value in self.values.values()),
            tuple(self.layouts.values()),
            tuple(self._types.items()),
            tuple(number[name] for name in outputs),
            tuple(self.symbols.items()),
        )

    def layout(self, name: str | None) -> Layout:
        if name is None:
            raise TileError("an operand is missing")
        return self.layouts[name]

    def type(self, name: str) -> TensorType:
        type = self.values[name].type
        assert isinstance(type, TensorType)
        return type


def _form(group: Fused, number: Mapping[str, int]) -> Hashable:
    """A group without its names and sizes."""
    nodes = tuple(
        (
            node.op,
            tuple(sorted((name, repr(value)) for name, value in node.attrs.items())),
            tuple(None if name is None else number[name] for name in node.inputs),
            tuple(number[name] for name in node.outputs),
        )
        for node in group.nodes
    )
    links = tuple(_form(link, number) for link in group.links)
    fetches = tuple((number[fetch.value], fetch.lines) for fetch in group.fetches)
    return group.kind, nodes, group.folded, group.reverse, group.placed, group.grain, group.variant, links, fetches


def _rows(
    names: _Renamed, group: Fused, outputs: Sequence[str], spec: Spec, inside: Inside | None = None
) -> tuple[TileProgram, ...]:
    domain = tuple(names.dim(d) for d in group.domain)
    builder = _builder(names, domain, group.folded)
    body = make_body(_put(names, group, builder), outputs, builder, group.reverse)
    return (lower_rows("rows", body, names.info, spec, inside, group.grain, group.variant),)


def _put(names: _Renamed, group: Fused, builder: BodyBuilder) -> Sequence[Node]:
    """The nodes of a group that compute something; those at its end that only say where a result goes are told the builder."""
    if not group.placed:
        return group.nodes
    nodes, (*_, copy) = group.nodes[: -group.placed], group.nodes
    source = group.nodes[-group.placed].inputs[0] or ""
    builder.put[copy.id] = source, _placed(names, group.nodes[-group.placed :], copy.id)
    return nodes


def _builder(names: _Renamed, domain: tuple[Dim, ...], folded: tuple[int, ...] = ()) -> BodyBuilder:
    return BodyBuilder(names.values, names.layouts, domain, folded)


def _product(
    names: _Renamed, group: Fused, outputs: Sequence[str], spec: Spec, inside: Inside | None = None
) -> tuple[TileProgram, ...]:
    node = next(n for n in group.nodes if n.op == "panel_matmul")
    domain = names.type(node.id).shape
    assert domain is not None
    builder = _builder(names, domain)
    builder.give(node.id)
    body = make_body([n for n in _put(names, group, builder) if n is not node], outputs, builder)
    a = names.layout(node.inputs[0])
    attrs = node.attrs
    n = names.dim(attrs["columns"][0])
    packing = Packing(names.layout(node.inputs[1]), a.shape[-1], n, attrs["panel"], attrs["last"])
    seen = [(names.layout(fetch.value), fetch.lines) for fetch in group.fetches]
    fetched = [Fetched(layout.root, layout.offset, numel(layout.shape), lines) for layout, lines in seen]
    dtype, made = names.type(node.id).dtype, (group.grain, group.variant, fetched)
    return lower_gemm("product", a, packing, dtype, body, names.info, spec, inside, *made)


def _chain(names: _Renamed, group: Fused, outputs: Sequence[str], spec: Spec) -> TileProgram:
    """Products and norms over the same rows, each link reading what the one before it wrote."""
    widths: dict[str, int] = {}
    for link in group.links[:-1]:
        shape = names.type(link.nodes[-1].id).shape
        assert shape is not None
        width = shape[-1]
        assert isinstance(width, int)
        widths[names.layout(link.nodes[-1].id).root] = width
    inside = Inside(chain_rows(spec, group.grain), widths)
    programs: list[TileProgram] = []
    for link in group.links:
        made = {"rows": _rows, "product": _product}[link.kind]
        programs += made(names, link, outputs if link is group.links[-1] else [link.nodes[-1].id], spec, inside)
    return chain("chain", programs)


def _attention(names: _Renamed, group: Fused, outputs: Sequence[str], spec: Spec) -> TileProgram:
    (node, *rest) = group.nodes
    q, k, v = (names.layout(node.inputs[i]) for i in range(3))
    mask = names.layout(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else None
    dtype = names.type(node.id).dtype
    kind = names.type(node.inputs[3]).dtype if mask is not None and node.inputs[3] else dtype
    out = _placed(names, rest, outputs[0]) if rest else names.layout(node.id)
    return lower_attention("attention", node, Operands(q, k, v, out, dtype, mask, kind), names.info, spec)


def _placed(names: _Renamed, views: Sequence[Node], output: str) -> Layout:
    """Where the elements of what the first of some views sees lie in the copy that is the last of them."""
    layout = names.layout(output)
    for node in reversed(views):
        shape = names.type(node.inputs[0] or "").shape
        assert shape is not None
        if node.op == "transpose":
            perm = node.attrs.get("perm") or tuple(reversed(range(len(shape))))
            strides: list[Dim] = [0] * len(shape)
            for place, axis in enumerate(perm):
                strides[axis] = layout.strides[place]
            layout = Layout(layout.root, layout.offset, shape, tuple(strides))
        else:
            found = reshaped(layout, shape)
            if found is None:
                raise TileError(f"{node.op} behind a result cannot be written in place")
            layout = Layout(layout.root, layout.offset, shape, found)
    return layout


def _copy(names: _Renamed, group: Fused, outputs: Sequence[str], spec: Spec) -> TileProgram:
    """Elements in order: read through the source's layout, written one after the other. What else is read or made of as many
    lies in the same order, and goes over the source's points as well."""
    node = next(n for n in group.nodes if n.op == "reshape")
    given, shape = node.inputs[0] or "", names.type(node.id).shape
    source = names.layout(given)
    builder = _builder(names, source.shape)
    step = builder.step(given)
    builder.held = {node.id: step}  # what is held now is taken for what the group makes, and its source is none of that
    alike = [n for n, value in names.values.items() if n != given and names.type(n).shape == shape]
    types = {n: Value(n, TensorType(names.type(n).dtype, source.shape)) for n in alike}
    strides = contiguous_strides(source.shape)
    builder.values = {**builder.values, **types}
    builder.layouts = {
        **builder.layouts,
        **{n: Layout(names.layout(n).root, names.layout(n).offset, source.shape, strides) for n in alike},
    }
    body = make_body([n for n in group.nodes if n is not node], outputs, builder)
    return lower_rows("copy", body, names.info, spec, grain=group.grain)


def _concat(names: _Renamed, group: Fused, outputs: Sequence[str], spec: Spec) -> tuple[TileProgram, ...]:
    """A copy for each input, to its own part of the result."""
    (node,) = group.nodes
    target = names.layout(node.id)
    axis = node.attrs["axis"] % len(target.shape)
    programs, place = [], names.dim(0)
    for name in node.uses:
        source = names.layout(name)
        builder = _builder(names, source.shape)
        step = builder.step(name)
        write = Write(step, target.root, names.type(name).dtype, target.strides, place * target.strides[axis])
        programs.append(lower_rows("copy", Body(source.shape, 0, tuple(builder.steps), (write,)), names.info, spec))
        place = place + source.shape[axis]
    return tuple(programs)


def _pack(names: _Renamed, group: Fused, outputs: Sequence[str], spec: Spec) -> TileProgram:
    (node,) = group.nodes
    source, target = names.layout(node.inputs[0]), names.layout(node.id)
    return lower_pack("pack", source, target, node.attrs["panel"], node.attrs["last"], names.info)


_PROGRAMS: dict[str, Callable[..., TileProgram | tuple[TileProgram, ...]]] = {
    "rows": _rows,
    "product": _product,
    "attention": _attention,
    "copy": _copy,
    "concat": _concat,
    "pack": _pack,
    "chain": _chain,
}
