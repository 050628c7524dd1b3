"""`hotfuse explain`: what a model consists of, what it costs, and what is opaque and why. Nothing is run, but with `--story`:
that tells what becomes of each part of the model while it serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console

import hotfuse
from hotfuse.cli.feeds import free_sizes, make_feeds
from hotfuse.cli.run import read_sizes
from hotfuse.cli.story import call_until_settled, show_list, show_story, story_data, told_stories
from hotfuse.cli.view import json_option, make_console, make_table, show_quantity, write_json
from hotfuse.errors import InputError
from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Graph
from hotfuse.ir.metadata import Cost, NodeMeta, bytes_of, describe
from hotfuse.runtime.planning import explain_pair
from hotfuse.runtime.story import find_story

MOST_LAYERS = 12
LAYER_DEPTH = 2  # parts of a layer's name that make a row of the table of layers


@click.command(
    "explain",
    epilog="""\b
Examples:
  hotfuse explain model.onnx
  hotfuse explain bert.onnx --dim batch=8 --dim sequence=128
  hotfuse explain model.onnx --json - | jq .opaque
  hotfuse explain model.onnx --story
  hotfuse explain model.onnx --story 3fa9c2
  hotfuse explain model.onnx --why matmul_0 gelu_0""",
)
@click.argument("model", type=click.Path())
@click.option("--dim", "dims", multiple=True, metavar="NAME=N", help="The size of a free dim, for costs or for --why.")
@click.option(
    "--story",
    is_flag=False,
    flag_value="",
    metavar="[ID]",
    help="Call the model until it is settled, then tell the story of a subgraph (its id, or a node in it), or list all.",
)
@click.option(
    "--why",
    "pair",
    nargs=2,
    metavar="A B",
    help="Say why two nodes are one kernel or are not, and what each way to make one of them would do. Nodes have the names of "
    "the model's layers, or those that `--story` and reports use.",
)
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(0), help="The longest that may take.")
@json_option
def command(
    model: str,
    dims: Sequence[str],
    story: str | None,
    pair: tuple[str, str] | None,
    seconds: float,
    json_path: str | None,
) -> None:
    """Show the operators of MODEL (.onnx or .pt2) with their counts, cost and origin, and what is opaque and why."""
    console = make_console(json_path)
    with console.status(f"loading {model}"):
        session = hotfuse.load(model)
    sizes = free_sizes(session.inputs)
    given = read_sizes(dims, "--dim")
    for name in given:
        if name not in sizes:
            raise InputError(f"the model has no free size {name!r}; its free sizes are {', '.join(sizes) or 'none'}")
    sizes.update(given)
    if story is not None:
        _tell(console, session, model, story, given, seconds, json_path)
        return
    if pair is not None:
        _say_why(console, session, model, pair, given, json_path)
        return
    result = explanation(session.graph, sizes)
    result = {
        "model": model,
        "inputs": {s.name: str(s.type) for s in session.inputs},
        "outputs": {s.name: str(s.type) for s in session.outputs},
        **result,
    }
    _show(console, result)
    write_json(json_path, result)


def _tell(
    console: Console, session: Any, model: str, id: str, dims: Mapping[str, int], limit_s: float, json_path: str | None
) -> None:
    """Run the model, and tell the story of one subgraph; where none fits, list all."""
    feeds = make_feeds(session.graph, session.inputs, given={}, shapes={}, dims=dims, seed=0)
    settled = call_until_settled(console, session, feeds, limit_s)
    stories = told_stories(session)
    found, problem = None, None
    try:
        found = find_story(stories, id) if id else None
    except InputError as error:
        problem = error
    if found is not None:
        show_story(console, found)
    else:
        show_list(console, stories)
    report = session.report()
    console.print(f"\n{report.calls} calls{'' if settled else ', and more might be decided still'}; {report.why}", markup=False)
    told = [found] if found is not None else stories
    data = {"model": model, "calls": report.calls, "settled": settled, "subgraphs": [story_data(s) for s in told]}
    write_json(json_path, data)
    if problem is not None:
        raise problem


def _say_why(
    console: Console, session: Any, model: str, pair: tuple[str, str], sizes: Mapping[str, int], json_path: str | None
) -> None:
    """What there is to say of two nodes in kernels for all sizes, or in those for the sizes that were given."""
    from hotfuse.frontends.onnx_model import load_onnx  # which imports onnx

    imported = None if model.endswith(".pt2") else load_onnx(model, session.config).graph
    found = explain_pair(session.graph, session.config, pair, sizes, imported)
    where = f" at {', '.join(f'{name}={size}' for name, size in sizes.items())}" if sizes else ""
    console.print(f"{' and '.join(found.nodes)} {'are' if found.together else 'are not'} one kernel{where}", markup=False)
    for line in found.lines:
        console.print(f"  {line}", markup=False)
    write_json(json_path, {"nodes": found.nodes, "together": found.together, "why": found.lines})


def explanation(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Any]:
    """All that `explain` says of a graph, nested graphs included, as plain data. Costs are at the given sizes."""
    nodes = [describe(g, n) for g in graph.walk() for n in g.nodes if not n.graphs]
    runners = [n for g in graph.walk() for n in g.nodes if n.graphs]
    constants = [c for g in graph.walk() for c in g.constants.values()]
    total = _sum(nodes)
    opaque = [n for n in nodes if n.opaque]
    named = {n.operator for n in opaque}
    return {
        "nodes": len(nodes) + len(runners),
        "nested_graphs": sum(1 for _ in graph.walk()) - 1,
        "constants": len(constants),
        "constant_bytes": _number(sum((bytes_of(c.type) for c in {id(c): c for c in constants}.values()), 0)),
        "sizes": dict(sizes),
        "flops": str(total.flops),
        "bytes_moved": str(total.bytes_moved),
        "at_sizes": _cost_data(total.at(sizes)),
        "operators": [{**row, "opaque": row["name"] in named} for row in _grouped(nodes, lambda n: n.operator, sizes)]
        + [{"name": n.op, "nodes": 1, "flops": 0, "bytes_moved": 0, "opaque": False} for n in runners],
        "layers": _grouped(nodes, lambda n: layer_of(n.origin.layer), sizes),
        "opaque": [{"operator": n.operator, "origin": str(n.origin), "reason": n.opaque} for n in opaque],
    }


def layer_of(name: str) -> str:
    """The first parts of a layer's name, by which layers are grouped: `/encoder/layer.0/fc/MatMul` is in `encoder/layer.0`."""
    separator = "/" if "/" in name else "."
    parts = [p for p in name.split(separator) if p]
    return separator.join(parts[: min(LAYER_DEPTH, len(parts) - 1)]) or "(top)"


def _grouped(nodes: Iterable[NodeMeta], key: Callable[[NodeMeta], str], sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    groups: dict[str, list[NodeMeta]] = {}
    for node in nodes:
        groups.setdefault(key(node), []).append(node)
    rows = [{"name": name, "nodes": len(found), **_cost_data(_sum(found).at(sizes))} for name, found in groups.items()]
    return sorted(rows, key=lambda row: (-_rank(row["flops"]), -_rank(row["bytes_moved"]), row["name"]))


def _sum(nodes: Iterable[NodeMeta]) -> Cost:
    total = Cost()
    for node in nodes:
        total = total + node.cost
    return total


def _cost_data(cost: Cost) -> dict[str, Any]:
    return {"flops": _number(cost.flops), "bytes_moved": _number(cost.bytes_moved)}


def _number(dim: Dim) -> int | str:
    return dim if isinstance(dim, int) else str(dim)


def _rank(amount: int | str) -> int:
    return amount if isinstance(amount, int) else 0


def _show(console: Console, result: Mapping[str, Any]) -> None:
    for kind in ("inputs", "outputs"):
        console.print(make_table(kind.capitalize(), ("name", "type"), result[kind].items()))
        console.print()
    columns = ("operator", ">nodes", ">flops", ">bytes moved", "")
    rows = [(*_cells(row), "opaque" if row["opaque"] else "") for row in result["operators"]]
    console.print(make_table("Operators", columns, rows))
    layers = result["layers"]
    if len(layers) > 1:
        rows = [_cells(row) for row in layers[:MOST_LAYERS]]
        title = "Layers" if len(layers) <= MOST_LAYERS else f"Layers, the {MOST_LAYERS} costliest of {len(layers)}"
        console.print()
        console.print(make_table(title, ("layer", ">nodes", ">flops", ">bytes moved"), rows))
    if result["opaque"]:
        rows = [(o["operator"], o["origin"], o["reason"]) for o in result["opaque"]]
        console.print()
        console.print(make_table("Opaque nodes, run by onnx or torch itself", ("operator", "where", "why"), rows))
    at = ", ".join(f"{name} = {size}" for name, size in result["sizes"].items())
    cost = result["at_sizes"]
    console.print(
        f"\n{result['nodes']} nodes, {len(result['opaque'])} opaque, {result['constants']} constants of "
        f"{show_quantity(result['constant_bytes'], 'B')}; {show_quantity(cost['flops'], 'flop')} and "
        f"{show_quantity(cost['bytes_moved'], 'B')} moved a call{' at ' + at if at else ''}",
        markup=False,
    )
    if at:
        console.print(f"flops = {result['flops']}", markup=False)


def _cells(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["name"], row["nodes"], show_quantity(row["flops"], "flop"), show_quantity(row["bytes_moved"], "B")
