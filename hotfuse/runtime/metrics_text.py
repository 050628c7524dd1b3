"""The text format of Prometheus, version 0.0.4: families of samples as lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from hotfuse.records import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Sample:
    value: float
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Family:
    """Samples of one name. Those of a counter only grow, and its name ends with `_total`."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: tuple[Sample, ...]


def exposition(families: Iterable[Family]) -> str:
    return "".join(_show(family) for family in families)


def _show(family: Family) -> str:
    lines = [f"# HELP {family.name} {_escape(family.help)}", f"# TYPE {family.name} {family.kind}"]
    for sample in family.samples:
        labels = ",".join(f'{name}="{_escape(value, quotes=True)}"' for name, value in sample.labels.items())
        lines.append(f"{family.name}{f'{{{labels}}}' if labels else ''} {_number(sample.value)}")
    return "\n".join(lines) + "\n"


def _escape(text: str, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n").encode("utf-8", "replace").decode()
    return text.replace('"', '\\"') if quotes else text


def _number(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
