"""The regret of the policy that learns which edits pay, over 10,000 decisions, against always doing what the model predicts and
against always staying with the rules' plan.

Edits of random graphs are timed both ways first. Then each decision is about one of them, drawn at random: whoever makes an
edit sees what it did, whoever does not sees nothing. Regret is what was lost to one who knows, in logarithms of time.

python -m benchmarks.bandit [--graphs 120] [--decisions 10000] [--plot FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from rich.progress import track

from hotfuse.config import Config
from hotfuse.fusion.edits import apply
from hotfuse.fusion.engine import Engine
from hotfuse.fusion.exploring import random_plan
from hotfuse.fusion.strategies import Array, context, new_policy, predicted, reward
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=120)
    parser.add_argument("--decisions", type=int, default=10_000)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = [edit for seed in track(range(FIRST, FIRST + options.graphs), "graphs") for edit in edits_of(seed)]
    contexts, rewards = np.array([c for c, _ in found]), np.array([r for _, r in found])
    curves = regrets(contexts, rewards, options.decisions)
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


def edits_of(seed: int) -> list[tuple[Array, float]]:
    """Edits of a plan that chance made: what speaks for each, and what it did."""
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
                made.append((candidate, context(step.strategy, step.before_s, step.gain_s, step.spread_s, step.scores)))
    given = [subject.inputs[name] for name in graph.inputs]
    race = Track(hoisted, graph, attached(hoisted, subject.graph.constants), given, config).race(groups, engine.draft.groups)
    found = []
    for candidate, told in made:
        ids = frozenset(node.id for item in candidate.gone if item.group for node in item.group.nodes)
        (before, _), (after, _) = (sum_of(laps, ids) for laps in race.laps)
        found.append((told, reward(before, after)))
    return found


def regrets(contexts: Array, rewards: Array, decisions: int, seed: int = 0) -> dict[str, Array]:
    """What each way to decide lost so far, decision by decision."""
    rng, policy = np.random.default_rng(seed), new_policy()
    chosen = rng.integers(len(rewards), size=decisions)
    best = np.maximum(rewards[chosen], 0)
    by_model = np.where(predicted(contexts[chosen]) > 0, rewards[chosen], 0.0)
    learned = np.zeros(decisions)
    for turn, place in enumerate(chosen):
        told = contexts[place : place + 1]
        if policy.draw(told, rng)[0] > 0:
            learned[turn] = rewards[place]
            policy = policy.learned(told, rewards[place : place + 1])
    return {
        "bandit": np.cumsum(best - learned),
        "always the model": np.cumsum(best - by_model),
        "always the rules": np.cumsum(best),
    }


def draw(curves: dict[str, Array], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    for name, curve in curves.items():
        axes.plot(curve, label=name)
    axes.set_xlabel("decisions")
    axes.set_ylabel("regret")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
