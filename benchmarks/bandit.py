"""The regret of the policy that learns which edits pay, over 10,000 decisions, against always doing what the model predicts and
against always staying with the rules' plan.

Edits of random graphs are timed both ways first. Then each decision is about one of them, drawn at random: whoever makes an
edit sees what it did, off by as much as measurements are (`NOISE`), whoever does not sees nothing. The policy decides as
traffic and tuning do: it makes the edits that it has hope of. Regret is what was lost to one who knows, in logarithms of time.
What is timed is kept in a file where one is given, and read from it the next time.

python -m benchmarks.bandit [--graphs 120] [--decisions 10000] [--edits FILE] [--plot FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.progress import track

from hotfuse.config import Config
from hotfuse.fusion.edits import apply
from hotfuse.fusion.engine import Engine
from hotfuse.fusion.exploring import random_plan
from hotfuse.fusion.strategies import NOISE, Array, context_of, new_policy, predicted, reward
from hotfuse.fusion.tuning import sum_of
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.layout import layouts
from hotfuse.passes.hoist import hoist
from hotfuse.runtime.build import attached, skeleton
from hotfuse.runtime.building import native_form
from hotfuse.runtime.planning import planner_of
from hotfuse.runtime.racing import Track
from hotfuse.runtime.specimens import specimen

FIRST = 2_000_000  # seeds that nobody calibrates with
COLORS = ("#1b7837", "#2166ac", "#b2182b")


@dataclass(frozen=True)
class Timed:
    """An edit that was timed both ways: what speaks for it, what it is known by, and what it did."""

    context: list[float]
    digest: str
    reward: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=120)
    parser.add_argument("--decisions", type=int, default=10_000)
    parser.add_argument("--edits", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.edits and options.edits.exists():
        found = [Timed(**record) for record in json.loads(options.edits.read_text())]
    else:
        found = [edit for seed in track(range(FIRST, FIRST + options.graphs), "graphs") for edit in edits_of(seed)]
    if options.edits:
        options.edits.write_text(json.dumps([asdict(edit) for edit in found]))
    contexts, rewards = np.array([edit.context for edit in found]), np.array([edit.reward for edit in found])
    curves = regrets(contexts, rewards, options.decisions, edits=[edit.digest for edit in found])
    print(f"{len(found)} edits timed both ways; {np.mean(rewards > 0):.0%} of them pay")
    for name, curve in curves.items():
        late = curve[-1] - curve[-1 - options.decisions // 10]
        print(f"{name}: regret {curve[-1]:.1f} after {options.decisions} decisions, {late:.2f} of it in the last tenth")
    if options.plot:
        draw(curves, options.plot)
    if options.json:
        options.json.write_text(
            json.dumps({name: curve[:: max(1, len(curve) // 200)].tolist() for name, curve in curves.items()})
        )


def edits_of(seed: int) -> list[Timed]:
    """Edits of a plan that chance made."""
    config, rng, subject = Config(tier=1, wait=True), np.random.default_rng(seed), specimen(seed)
    spec = host_spec(config.isa)
    hoisted = hoist(native_form(skeleton(subject.graph), spec), ())
    graph, places = hoisted.main, layouts(hoisted.main, hoisted.main.values)
    planner = planner_of(config, spec, graph, {})
    assert planner is not None
    groups = random_plan(graph, rng)
    engine = Engine(graph, graph.values, places, planner, groups)
    weighed = engine.weigh(engine.candidates())
    touched: set[str] = set()
    made = []
    for place in rng.permutation(len(weighed)):
        candidate = weighed[place].candidate
        if touched.isdisjoint(candidate.names):
            step = engine.step(weighed[place])
            if apply(engine.draft, candidate):
                touched.update(candidate.names)
                made.append((candidate, step))
    given = [subject.inputs[name] for name in graph.inputs]
    race = Track(hoisted, graph, attached(hoisted, subject.graph.constants), given, config).race(groups, engine.draft.groups)
    found = []
    for candidate, step in made:
        ids = frozenset(node.id for item in candidate.gone if item.group for node in item.group.nodes)
        (before, _), (after, _) = (sum_of(laps, ids) for laps in race.laps)
        found.append(Timed(context_of(step).tolist(), step.digest, reward(before, after)))
    return found


def regrets(contexts: Array, rewards: Array, decisions: int, seed: int = 0, edits: Sequence[str] = ()) -> dict[str, Array]:
    """What each way to decide lost so far, decision by decision. `edits` are the digests, where they are known."""
    rng, policy = np.random.default_rng(seed), new_policy()
    chosen = rng.integers(len(rewards), size=decisions)
    best = np.maximum(rewards[chosen], 0)
    by_model = np.where(predicted(contexts[chosen]) > 0, rewards[chosen], 0.0)
    learned, errors = np.zeros(decisions), NOISE * rng.standard_normal(decisions)
    for turn, place in enumerate(chosen):
        told, mine = contexts[place : place + 1], edits[place : place + 1]
        if policy.hope(told, mine)[0] > 0:
            learned[turn] = rewards[place]
            policy = policy.learned(told, rewards[place : place + 1] + errors[turn], edits=mine)
    return {
        "bandit": np.cumsum(best - learned),
        "always the model": np.cumsum(best - by_model),
        "always the rules": np.cumsum(best),
    }


def draw(curves: dict[str, Array], path: Path) -> None:
    """The curves as SVG, which any browser shows."""
    wide, high, left, below = 800, 450, 60, 40
    count, most = max(map(len, curves.values())), max(float(curve[-1]) for curve in curves.values())
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="13">']
    lines.append(f'<path d="M{left} 10V{high - below}H{wide - 10}" stroke="black" fill="none"/>')
    for share in (0.25, 0.5, 0.75, 1.0):
        x, y = left + share * (wide - left - 10), high - below - share * (high - below - 10)
        lines.append(f'<text x="{x:.0f}" y="{high - below + 16}" text-anchor="end">{share * count:,.0f}</text>')
        lines.append(f'<text x="{left - 4}" y="{y + 4:.0f}" text-anchor="end">{share * most:.0f}</text>')
    lines.append(f'<text x="{wide // 2}" y="{high - 6}">decisions</text><text x="4" y="12">regret</text>')
    for number, (name, curve) in enumerate(curves.items()):
        color = COLORS[number % len(COLORS)]
        places = np.linspace(0, len(curve) - 1, 200).astype(int)
        xs = left + places / count * (wide - left - 10)
        ys = high - below - curve[places] / most * (high - below - 10)
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
        lines.append(f'<polyline points="{points}" stroke="{color}" fill="none" stroke-width="2"/>')
        lines.append(f'<text x="{left + 20}" y="{30 + 18 * number}" fill="{color}">{name}: {curve[-1]:.0f}</text>')
    path.write_text("\n".join([*lines, "</svg>"]))


if __name__ == "__main__":
    main()
