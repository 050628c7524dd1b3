"""Stories: whatever is merged, split, withdrawn and found wrong, every call runs every node once, and each subgraph knows what
it was made from and what became of it."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx.parser
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hotfuse
from hotfuse.errors import InputError
from hotfuse.events import Event
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Graph
from hotfuse.ir.types import F32, tensor
from hotfuse.runtime.report import make_report
from hotfuse.runtime.story import Source, Story, calls_by_tier, find_story, tell
from hotfuse.runtime.subgraph import Fusion, Served, subgraph_id

NODES = 6


def chain() -> Graph:
    builder = GraphBuilder()
    value = builder.input("x", tensor(F32, 8))
    for _ in range(NODES):
        value = builder.add("tanh", value)
    return builder.build([value])


GRAPH = chain()
IDS = [node.id for node in GRAPH.nodes]


def fusion(first: int, last: int, form: str = "") -> Fusion:
    return Fusion(tuple(IDS[first:last]), form, 1, 10, 100)


def cut(places: Sequence[int], start: int = 0, end: int = NODES) -> tuple[Fusion, ...]:
    """Neighbours, cut at some places."""
    borders = [start, *(p for p in sorted(set(places)) if start < p < end), end]
    return tuple(fusion(a, b) for a, b in pairwise(borders))


def source(events: Sequence[Event], calls: int, **more: Any) -> Source:
    return Source(GRAPH, GRAPH, Served(), tuple(events), calls, **more)


def nodes_of(fusions: Sequence[Fusion]) -> set[str]:
    return {node for each in fusions for node in each.nodes}


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Event], int]:
    """A generic target, edits of it, and what may happen to them, with calls in between."""
    events: list[Event] = []
    calls = 0
    targets: dict[str, tuple[Fusion, ...]] = {"generic": cut(draw(st.lists(st.integers(1, NODES - 1))))}
    published: list[str] = []

    def emit(kind: str, target: str, **data: Any) -> None:
        nonlocal calls
        calls += draw(st.integers(0, 5))
        events.append(Event(kind, target, "", data, time_s=float(len(events)), calls=calls))

    emit("tier.built", "generic", fusions=targets["generic"])
    for number in range(draw(st.integers(0, 10))):
        what = draw(st.sampled_from(["edit", "publish", "tier.withdraw", "tier.retire", "tier.quarantine", "bake"]))
        target = draw(st.sampled_from(sorted(targets)))
        if what == "edit":  # it has another cut of what some neighbours of the generic target cover
            borders = [0, *np.cumsum([len(f.nodes) for f in targets["generic"]]).tolist()]
            first, last = sorted(draw(st.tuples(*[st.integers(0, len(borders) - 1)] * 2)))
            if first < last:
                name = f"edit {number}"
                targets[name] = cut(draw(st.lists(st.integers(1, NODES - 1))), borders[first], borders[last])
                emit("tier.built", name, fusions=targets[name])
        elif what == "bake":
            targets["baked"] = tuple(Fusion(f.nodes, "n=8", 1, 9, 90) for f in targets["generic"])
            emit("tier.built", "baked", fusions=targets["baked"])
        elif what == "publish" and (target == "generic" or "generic" in published):  # perhaps once more
            mine = nodes_of(targets[target])
            edits = [name for name in published if name.startswith("edit") and name != target]
            if target.startswith("edit") and any(mine & nodes_of(targets[name]) for name in edits):
                continue  # two edits of one place exclude each other
            published = [*(name for name in published if name != target), target]
            emit("tier.publish", target)
        elif what.startswith("tier.") and target in published and (target != "generic" or published == ["generic"]):
            emit(what, target)
            published.remove(target)
            if what == "tier.quarantine":
                del targets[target]
                if target == "generic":
                    break
    return events, calls + draw(st.integers(0, 5))


@settings(max_examples=300, deadline=None)
@given(histories())
def test_every_call_runs_every_node_once(history: tuple[list[Event], int]) -> None:
    events, calls = history
    stories = tell(source(events, calls))
    by_id = {story.id: story for story in stories}
    assert len(by_id) == len(stories)
    for node in IDS:
        holders = [s for s in stories if node in s.subgraph.nodes and s.subgraph.kind != "baked"]
        assert sum(s.executions or 0 for s in holders) == calls, (node, [str(s) for s in holders])
        assert [s.state for s in holders].count("serves") == 1
    for story in stories:
        for parent in story.made_from:
            assert story.id in by_id[parent].became
            assert set(by_id[parent].subgraph.nodes) & set(story.subgraph.nodes)
        for child in story.became:
            assert story.id in by_id[child].made_from
        assert [c.time_s for c in story.chapters] == sorted(c.time_s for c in story.chapters)
        if story.executions and story.subgraph.kind == "fused":
            assert "tier.publish" in [c.kind for c in story.chapters]
        json.dumps(story.json(), allow_nan=False)


def test_a_merge_that_is_taken_back() -> None:
    generic, merged = cut([2, 4]), (fusion(0, 4),)
    events = [
        Event("tier.build", "generic", "it is hot", {}, 0.5, 0),
        Event("tier.built", "generic", "", {"fusions": generic, "cpu_s": 0.5, "kernels": 3, "form": "ignored"}, 1.0, 0),
        Event("tier.publish", "generic", "it was proved", {}, 2.0, 10),
        Event("tier.built", "merge", "", {"fusions": merged}, 3.0, 20),
        Event("tier.publish", "merge", "", {}, 4.0, 30),
        Event("tier.retire", "merge", "slower than its parts", {}, 5.0, 70),
        Event("tier.quarantine", "generic", "wrong", {"units": [IDS[5]]}, 6.0, 90),
        Event("tier.publish", "generic", "without what is wrong", {}, 7.0, 95),
    ]
    found = tell(source(events, 100, seconds={IDS[1]: 0.003, IDS[3]: 0.001}))
    a, b, c = (find_story(found, f.id) for f in generic)
    both = find_story(found, merged[0].id)
    assert (both.state, both.executions, both.made_from) == ("retired", 40, (a.id, b.id))
    assert (a.state, a.executions, a.became) == ("serves", 20 + 30, (both.id,))
    assert (a.share, b.share, c.share) == (0.75, 0.25, None)
    assert (c.state, c.executions) == ("quarantined", 80)
    assert [x.kind for x in c.chapters] == ["tier.build", "tier.built", "tier.publish", "tier.quarantine"]
    assert [x.kind for x in a.chapters] == ["tier.build", "tier.built", "tier.publish", "tier.publish"]
    assert a.chapters[1].figures == {"cpu_s": 0.5, "kernels": 3}
    original = find_story(found, subgraph_id("original", "", [IDS[5]]))
    assert (original.state, original.executions, original.became) == ("serves", 10 + 10, (c.id,))
    assert (both.subgraph.inputs, both.subgraph.outputs) == (("x",), (IDS[3],))
    assert both.subgraph.bytes_moved == 2 * 8 * 4
    assert calls_by_tier(events, 100) == {0: 10, 1: 90}


def test_an_id_is_the_same_in_every_process_and_tells_forms_apart() -> None:
    assert fusion(0, 2).id == subgraph_id("fused", "", IDS[:2])
    assert subgraph_id("fused", "", ["a", "b"]) == "3729ab2fd5"
    assert len({fusion(0, 2).id, fusion(0, 2, "n=8").id, fusion(0, 3).id, subgraph_id("fused", "", ["ab"])}) == 4


def test_what_is_asked_for_is_found_or_refused() -> None:
    found = tell(source([], 3))
    assert [s.executions for s in found] == [3] * NODES
    assert find_story(found, IDS[2]).subgraph.nodes == (IDS[2],)
    assert find_story(found, found[0].id[:6]) is found[0]
    with pytest.raises(InputError, match="there is no subgraph 'nothing'; there are "):
        find_story(found, "nothing")
    with pytest.raises(InputError, match="there is no subgraph ''"):
        find_story(found, "")


WEIGHT = ", ".join(["0.25"] * 64)
MODEL = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
    told (float[n, 8] x) => (float[n, 8] y) <float[8, 8] w = {{{WEIGHT}}}>
    {{ h = MatMul(x, w)  r = Tanh(h)  s = Add(r, x)  y = Softmax(s) }}""")
X = np.ones((3, 8), np.float32)


def check_native(stories: Sequence[Story]) -> None:
    fused = [s for s in stories if s.subgraph.kind == "fused"]
    assert fused
    assert all(s.state == "serves" and s.made_from for s in fused)
    assert all(s.subgraph.kernels and s.subgraph.instructions and s.subgraph.code_bytes for s in fused)
    assert not any(s.state == "serves" for s in stories if s.subgraph.kind == "original" and s.became)


def test_a_session_tells_what_became_of_its_nodes() -> None:
    with hotfuse.load(MODEL, tier=1, wait=True) as session:
        for _ in range(4):
            session.run(None, {"x": X})
        args = session.graph.name, session.graph, session.opaque, session.best.executor, session.calls, session.events
        report = make_report(*args, closed=False)
    check_native(report.subgraphs)
    told = report.story("tanh_0")
    assert told.executions == 4
    assert [c.kind for c in told.chapters] == ["native.made"]
    assert "Tanh" in " ".join(told.subgraph.origins)
    assert json.loads(json.dumps(report.json()))["subgraphs"][0]["subgraph"]["kind"] == "fused"


def test_a_session_at_tier_0_has_original_subgraphs() -> None:
    with hotfuse.load(MODEL, tier=0) as session:
        session.run(None, {"x": X})
        found = session.report().subgraphs
    assert [(s.subgraph.kind, s.state, s.executions) for s in found] == [("original", "serves", 1)] * len(session.graph.nodes)


def test_a_compiled_module_tells_the_stories_of_its_classes() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Softmax(-1)).eval()
    fast = hotfuse.compile(model, tier=1, wait=True, capture="blocking")
    with torch.no_grad():
        fast(torch.ones(3, 8))
    report = fast.report()
    check_native(report.subgraphs)
    assert report.story(report.subgraphs[0].id) is report.subgraphs[0]
    json.dumps(report.json())
    fast.close()


def test_a_report_keeps_no_weights_alive() -> None:
    session = hotfuse.load(MODEL, tier=1, wait=True)
    session.run(None, {"x": X})
    report, graph = session.report(), weakref.ref(session.graph)
    session.close()
    del session
    gc.collect()
    assert graph() is None
    check_native(report.subgraphs)
