"""Weights that change under a plan: no answer from old weights later than the next audit."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import hotfuse
from hotfuse.runtime import weight_stamps
from hotfuse.runtime.weight_stamps import CHUNK_BYTES, Stamps, checksum, chunks
from hotfuse.runtime.weights import LiveWeights, PreparedWeights, ties

AUDIT_EVERY = 4


class Scaled(torch.nn.Module):
    """Its weight is scaled, and its convolution normalised, by weights alone: work that is done ahead of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 4))
        self.scale = torch.nn.Parameter(torch.rand(6, 1) + 0.5)
        self.head = torch.nn.Linear(6, 6, bias=False)
        self.again = torch.nn.Linear(6, 6, bias=False)
        self.again.weight = self.head.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, self.weight * self.scale)
        return F.linear(F.linear(y, torch.tanh(self.head.weight)), torch.tanh(self.again.weight))


class ConvNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 5, 3, bias=False)
        self.norm = torch.nn.BatchNorm2d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)))


def compiled(model: torch.nn.Module, x: torch.Tensor) -> Any:
    fast = hotfuse.compile(model, wait=True, capture="blocking", audit_every=AUDIT_EVERY)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    (served,) = fast._hotfuse.root.classes
    assert served.prepared, "the test needs a value that was prepared ahead of calls"
    assert fast.report().answered == 1
    return fast


def step(model: Any, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    optimizer = make(model.parameters())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()


def through_numpy(model: Any) -> None:
    model.weight.detach().numpy()[0, 0] += 1.0


def through_data(model: Any) -> None:
    model.weight.data += 1.0


def other_state(model: Any) -> None:
    model.load_state_dict({k: v + 1.0 for k, v in model.state_dict().items()})


def untie(model: Any) -> None:
    model.again.weight = torch.nn.Parameter(model.head.weight.detach().clone() * 3)


def tied_change(model: Any) -> None:
    with torch.no_grad():
        model.head.weight.mul_(-2.0)


def exchange_rows(model: Any) -> None:
    array = model.weight.detach().numpy()
    array[[0, 1]] = array[[1, 0]]


AT_ONCE: dict[str, Callable[[Any], Any]] = {
    "SGD step": lambda m: step(m, lambda p: torch.optim.SGD(p, lr=0.1)),
    "AdamW step": lambda m: step(m, lambda p: torch.optim.AdamW(p, lr=0.1)),
    "fused AdamW step": lambda m: step(m, lambda p: torch.optim.AdamW(p, lr=0.1, fused=True)),
    "load_state_dict": other_state,
    "data replaced": lambda m: setattr(m.weight, "data", torch.ones(6, 4)),
    "parameter replaced": lambda m: setattr(m, "weight", torch.nn.Parameter(torch.ones(6, 4))),
    "in place": lambda m: torch.nn.init.constant_(m.scale, 2.0),
    "to float64 and back": lambda m: (m.double(), m.float(), torch.nn.init.ones_(m.weight)),
    "to float64": lambda m: m.double(),
    "tied weight changed": tied_change,
    "tie broken": untie,
}
AT_THE_AUDIT: dict[str, Callable[[Any], Any]] = {
    "one element through numpy": through_numpy,
    "data added to": through_data,
    "rows exchanged through numpy": exchange_rows,
}


@pytest.mark.parametrize("change", list(AT_ONCE))
def test_changes_that_leave_a_trace_are_seen_at_once(change: str) -> None:
    model, x = Scaled().eval(), torch.randn(2, 4)
    fast = compiled(model, x)
    AT_ONCE[change](model)
    x = x.to(model.weight.dtype)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("change", list(AT_THE_AUDIT))
def test_changes_without_a_trace_are_seen_at_the_next_audit(change: str) -> None:
    model, x = Scaled().eval(), torch.randn(2, 4)
    fast = compiled(model, x)
    AT_THE_AUDIT[change](model)
    with torch.no_grad():
        for _ in range(AUDIT_EVERY - 1):
            fast(x)
        torch.testing.assert_close(fast(x), model(x))
    (event,) = fast._hotfuse.events.of("weights.changed")
    assert event.reason == "a weight changed without a trace"


def test_refresh_reads_weights_again() -> None:
    model, x = Scaled().eval(), torch.randn(2, 4)
    fast = hotfuse.compile(model, wait=True, capture="blocking", audit_every=1_000_000)
    with torch.no_grad():
        for _ in range(8):  # every chunk was audited in this round
            fast(x)
        through_numpy(model)
        fast.refresh()
        torch.testing.assert_close(fast(x), model(x))


def test_a_folded_batch_norm_follows_its_statistics() -> None:
    model, x = ConvNorm().eval(), torch.randn(2, 3, 8, 8)
    fast = hotfuse.compile(model, wait=True, capture="blocking", audit_every=AUDIT_EVERY)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
        for change in (
            lambda: model.norm.running_mean.add_(1.0),
            lambda: model.norm.weight.mul_(2.0),
            lambda: model.conv.weight.neg_(),
        ):
            change()
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert fast.report().answered == 4


def test_a_checksum_sees_every_byte() -> None:
    data = torch.zeros(1001, dtype=torch.uint8)
    sums = {checksum(data)}
    for place in range(1001):
        data[place] = 1
        sums.add(checksum(data))
        data[place] = 0
    assert len(sums) == 1002


def test_a_checksum_sees_all_signs_flipped_and_elements_exchanged() -> None:
    for dtype in (torch.float64, torch.float32, torch.float16):
        data = torch.randn(64, dtype=torch.float64).to(dtype)
        seen = {checksum(next(chunks(data)))}
        seen.add(checksum(next(chunks(-data))))
        seen.add(checksum(next(chunks(data.flip(0)))))
        seen.add(checksum(next(chunks(data.reshape(8, 8).t().contiguous()))))
        assert len(seen) == 4


def test_chunks_cover_a_tensor_and_share_its_memory() -> None:
    tensor = torch.zeros(CHUNK_BYTES // 4 * 2 + 3)
    pieces = list(chunks(tensor))
    assert sum(p.numel() for p in pieces) == tensor.numel() * 4
    tensor.fill_(1.0)
    assert all(int(p.count_nonzero()) > 0 for p in pieces)
    assert sum(p.numel() for p in chunks(torch.zeros(4, 6).t())) == 4 * 6 * 4


def test_an_audit_is_spread_evenly_over_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    source = torch.zeros(CHUNK_BYTES // 4 * 3)
    stamps = Stamps([source])
    summed: list[int] = []
    monkeypatch.setattr(weight_stamps, "checksum", lambda chunk: summed.append(chunk.data_ptr()) or checksum(chunk))
    for _ in range(3):
        before = len(summed)
        assert [stamps.doubt([source], 12) for _ in range(12)] == [""] * 12
        assert len(set(summed[before:])) == len(summed) - before == 3
    source.numpy()[-1] = 1.0
    assert any(stamps.doubt([source], 12) for _ in range(12))


def test_prepared_values_are_made_once_per_change() -> None:
    source = torch.zeros(4)
    prepared = PreparedWeights(lambda sources: [sources[0] + 1], audit_every=1)
    assert [prepared.values([source])[1] for _ in range(3)] == ["first use", "", ""]
    source.add_(1)
    values, why = prepared.values([source])
    assert why == "a weight was changed in place"
    assert values[0].tolist() == [2.0] * 4
    assert prepared.values([torch.zeros(4)])[1] == "a weight was replaced"


def test_inference_tensors_have_no_version_but_checksums() -> None:
    with torch.inference_mode():
        source = torch.zeros(4)
    prepared = PreparedWeights(lambda sources: [sources[0] + 1], audit_every=1)
    prepared.values([source])
    source.numpy()[1] = 5
    assert prepared.values([source])[1] == "a weight changed without a trace"


def test_ties_and_live_weights() -> None:
    from hotfuse.ir.builder import GraphBuilder
    from hotfuse.ir.types import F32, tensor

    model = Scaled()
    assert list(ties(model)) == [("head.weight", "again.weight")]
    builder = GraphBuilder()
    weight = builder.weight("head.weight", tensor(F32, 6, 6))
    live = LiveWeights(model, builder.build([weight]), ["head.weight"])
    assert live.read() == [model.head.weight]
    model.half()
    assert live.read() == "a weight has another dtype"
    model.float()
    del model.head.weight
    assert live.read() == "a weight was removed or replaced by something else"
    with pytest.raises(ValueError, match="the capture saw"):
        LiveWeights(torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2)}), builder.build([weight]), ["head.weight"])


def test_live_weights_see_what_no_pointer_tells() -> None:
    from hotfuse.ir.builder import GraphBuilder
    from hotfuse.ir.types import F32, tensor

    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 2, bias=False), "b": torch.nn.Linear(3, 2, bias=False)})
    model["twin"] = torch.nn.Linear(3, 2, bias=False)
    model["twin"].weight = model["a"].weight
    builder = GraphBuilder()
    names = ["a.weight", "b.weight", "twin.weight"]
    live = LiveWeights(model, builder.build([builder.weight(n, tensor(F32, 2, 3)) for n in names]), names)

    def tensors() -> list[torch.Tensor]:
        return [model[n].weight for n in ("a", "b", "twin")]

    assert all(map(operator.is_, live.read(), tensors()))
    model["b"].weight.data = model["b"].weight.data.view(3, 2)  # the same tensor, at the same place
    assert live.read() == "a weight has another shape"
    model["b"].weight.data = torch.ones(3, 2).t()
    assert live.read() == "a weight lies in memory another way"
    model["b"].weight.data = torch.ones(2, 3)
    model["b"].weight.requires_grad_(False)
    with torch.inference_mode():
        assert all(map(operator.is_, live.read(), tensors()))
    model["b"].weight = model["a"].weight
    assert all(map(operator.is_, live.read(), tensors()))
    model["twin"].weight = torch.nn.Parameter(torch.ones(2, 3, dtype=torch.float64))
    assert live.read() == "a weight has another dtype"
    model["twin"].weight = torch.nn.Parameter(torch.ones(2, 3))
    assert live.read() == "weights that were tied no longer are"


def test_all_checksums_are_compared_where_somebody_asks() -> None:
    """What left no trace is then known at once, and for good."""
    source = torch.zeros(1 << 20)
    prepared = PreparedWeights(lambda sources: [sources[0] + 1], audit_every=1000)
    prepared.values([source])
    assert prepared.outdated([source]) == ""
    source.numpy()[-1] = 1.0
    assert prepared.values([source])[1] == ""  # nobody has come to look there
    assert prepared.outdated([source]) == "a weight changed without a trace"
    values, why = prepared.values([source])
    assert why == "a weight changed without a trace"
    assert values[0][-1] == 2.0
