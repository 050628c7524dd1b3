"""What a capture leaves behind: nothing holds models, jobs or classes of wrappers that their owners have dropped."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import pytest
import torch

import hotfuse
from hotfuse.config import Config
from hotfuse.errors import CaptureError
from hotfuse.runtime import torch_capture


def all_gone(references: list[weakref.ref[Any]]) -> bool:
    """Whether nobody holds these objects, once whoever finished the last capture had time to go on."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(reference() is not None for reference in references):
        gc.collect()
        time.sleep(0.01)
    return all(reference() is None for reference in references)


def test_models_that_were_captured_are_let_go() -> None:
    models: list[weakref.ref[Any]] = []
    for _ in range(2):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()).eval().requires_grad_(False)
        models.append(weakref.ref(model))
        fast = hotfuse.compile(model, wait=True)
        fast(torch.randn(2, 4))
        fast.close()
        del fast, model
    assert all_gone(models)


@pytest.mark.parametrize("urgent", [True, False])
def test_jobs_that_failed_are_let_go(urgent: bool) -> None:
    class Asked:
        def __init__(self) -> None:
            self.done = threading.Event()

        def make(self) -> bytes:
            raise CaptureError("planted")

        def finish(self, found: Any) -> None:
            self.done.set()

    asked = Asked()
    torch_capture.submit(torch_capture.make_job(asked.make, asked.finish, Config()), urgent)
    assert asked.done.wait(10)
    reference = weakref.ref(asked)
    del asked
    assert all_gone([reference])


def test_classes_of_wrappers_are_let_go() -> None:
    class Short(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    kind = weakref.ref(type(hotfuse.compile(Short())))
    original = weakref.ref(Short)
    del Short
    gc.collect()
    assert (kind(), original()) == (None, None)
