"""`hotfuse bench`: engines against each other on one model, in one run, with every answer checked against float64.

  models.py    what is measured                        judge.py     is an answer right?
  subject.py   one model made ready for all engines    float64.py   an ONNX model in double precision
  engines.py   who runs it                             roofline.py  how fast could it be?
  worker.py    one engine in a process of its own      probes.py    what the machine can do, by generated loops
  rounds.py    workers taking turns                    timing.py    medians, spreads, and when a ratio is a claim
  contest.py   all of it, for one model                shares.py    what a kernel reached
  suites.py    contests one after the other            criteria.py  what a suite must show, and whether it does
  kernels.py, kernel_engines.py                        products and chains instead of models
  lengths.py, length_subjects.py, length_engines.py    one build over many lengths, against builds baked for each
  timeline.py, timeline_runs.py, timeline_summary.py   latency over time, from cold
  timeline_worker.py, timeline_engines.py, timeline_criteria.py, timeline_view.py
  table.py, plot.py, entry.py                          what a person sees and types

Workers import this package too and their memory is measured, so the command and what it needs are imported only on demand.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "command":
        raise AttributeError(name)
    from hotfuse.cli.bench.entry import command

    return command
