"""Records among a model's results and arguments: dataclasses, named tuples, torch's own, and transformers' caches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils._pytree as pytree

import hotfuse
from hotfuse.errors import CaptureError

X = torch.arange(6.0).reshape(2, 3)
TALL = torch.arange(15.0).reshape(5, 3)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def compiled(model: Any, **options: Any) -> Any:
    return hotfuse.compile(model, **{"wait": True, "capture": "blocking", **options})


@dataclass
class Answer:
    first: torch.Tensor
    rest: tuple[Any, ...]
    name: str = "answer"


@dataclass(frozen=True)
class Frozen:
    inner: Answer
    rows: int
    kind: Any
    scale: float = 1.5


@dataclass(slots=True)
class Slotted:
    value: torch.Tensor


@dataclass
class Checked:
    value: torch.Tensor
    doubled: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.doubled = self.value * 2


class Pair(NamedTuple):
    left: Any
    right: Any


def same(a: Any, b: Any) -> bool:
    """Whether two results are of the same classes, with equal values throughout."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


RESULTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dataclass": lambda x: Answer(x * 2, (None, x + 1)),
    "frozen and nested": lambda x: Frozen(Answer(x.t(), (x,)), x.shape[0], torch.float16),
    "slots": lambda x: [Slotted(x * 3), {"b": Slotted(x)}["b"]],
    "fields made after init": lambda x: Checked(x + 1),
    "named tuple": lambda x: Pair(x - 1, Answer(x, ())),
    "topk": lambda x: x.topk(2),
    "max": lambda x: (torch.max(x, dim=1), x.sort(dim=0)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_of_the_models_classes(name: str) -> None:
    model = RESULTS[name]
    fast = compiled(model)
    for x in (X, TALL):
        assert same(fast(x), model(x))
    assert fast.report().answered == 2
    assert len(fast.report().classes) == 1


class Wrapped(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Answer:
        return Answer(x * 2, (None, x + 1))


def test_results_come_back_from_the_capture_process() -> None:
    fast = compiled(Wrapped(), capture="background")
    assert same(fast(X), Wrapped()(X))
    assert fast.report().answered == 1


def test_by_default_the_module_answers_with_its_own() -> None:
    fast = compiled(Wrapped(), wait=False)
    assert same(fast(X), Wrapped()(X))
    assert len(fast.report().classes) == 1


def test_records_share_memory_as_eagers_do() -> None:
    fast = compiled(lambda x: Pair(Slotted(x), Slotted(x.t())))
    x = torch.zeros(2, 3)
    found = fast(x)
    assert found.left.value is x
    x.fill_(7.0)
    assert found.right.value.tolist() == [[7.0, 7.0]] * 3
    assert fast.report().answered == 1


def test_torchs_table_of_classes_stays_as_it_is() -> None:
    fast = compiled(Wrapped())
    before = set(pytree.SUPPORTED_NODES)
    fast(X)
    assert set(pytree.SUPPORTED_NODES) == before
    assert pytree.tree_leaves(found := fast(X)) == [found]


def test_a_class_that_has_no_name_is_refused() -> None:
    @dataclass
    class Local:
        value: torch.Tensor

    fast = compiled(lambda x: Local(x * 2))
    assert torch.equal(fast(X).value, X * 2)
    assert "define the class at the top level" in fast.report().why


class Keeps(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = Answer(torch.ones(2), ())

    def forward(self, x: torch.Tensor) -> Any:
        return self.kept


def twice(x: torch.Tensor) -> Any:
    answer = Slotted(x + 1)
    return answer, answer


@pytest.mark.parametrize("model", [Keeps(), twice], ids=["kept", "twice"])
def test_a_record_that_is_more_than_a_result_is_refused(model: Any) -> None:
    with pytest.raises(CaptureError, match="is not made in the call"):
        compiled(model, strict=True)(X)


# arguments


def reads(a: Answer, scale: float = 1.0) -> torch.Tensor:
    return a.first * scale + a.rest[0] if a.name == "answer" else a.first


def test_dataclasses_are_arguments() -> None:
    fast = compiled(reads)
    for x in (X, TALL):
        assert torch.equal(fast(Answer(x, (x + 1,)), scale=2.0), x * 2 + x + 1)
    assert fast.report().answered == 2
    assert len(fast.report().classes) == 1


def test_plain_fields_are_compared_by_value() -> None:
    fast = compiled(reads)
    assert torch.equal(fast(Answer(X, (X,))), X + X)
    assert torch.equal(fast(Answer(X, (X,), "other")), X)
    assert torch.equal(fast(Answer(X, (X,))), X + X)
    assert fast.report().answered == 3
    assert len(fast.report().classes) == 2


def test_classes_of_arguments_are_told_apart() -> None:
    def which(a: Any) -> torch.Tensor:
        return a.value + (1 if isinstance(a, Slotted) else 2)

    fast = compiled(which)
    assert torch.equal(fast(Slotted(X)), X + 1)
    assert torch.equal(fast(Checked(X)), X + 2)


def test_a_dataclass_argument_goes_to_the_capture_process() -> None:
    fast = compiled(reads, capture="background")
    assert torch.equal(fast(Answer(X, (X,))), X + X)
    assert fast.report().answered == 1


def overwrites(a: Answer) -> torch.Tensor:
    a.first = a.first + 1
    return a.first * 2


def extends(items: list[torch.Tensor]) -> torch.Tensor:
    items.append(items[0] + 1)
    return items[0] * 2


def test_arguments_that_the_model_changes_are_left_to_it() -> None:
    fast = compiled(overwrites)
    answer = Answer(X, ())
    assert torch.equal(fast(answer), (X + 1) * 2)
    assert torch.equal(answer.first, X + 1)
    assert "changes a container or an object" in fast.report().why
    items = [X]
    assert torch.equal(compiled(extends)(items), X * 2)
    assert torch.equal(items[1], X + 1)


def test_an_argument_that_is_returned_is_the_argument() -> None:
    fast = compiled(lambda a: a)
    answer = Answer(X, ())
    assert fast(answer) is answer


def test_an_argument_that_holds_itself_is_the_models() -> None:
    fast = compiled(lambda a: a.first + 1)
    answer = Answer(X, ())
    answer.rest = (answer,)
    assert torch.equal(fast(answer), X + 1)
    assert "Answer cannot be compared" in fast.report().why


# caches


def test_a_cache_is_returned_and_serves_the_next_call() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=40, bos_token_id=0, eos_token_id=None)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    fast = compiled(model)
    for length in (3, 5):
        ids, following = torch.randint(40, (2, length)), torch.randint(40, (2, 1))
        mine, theirs = fast(ids), model(ids)
        assert type(mine.past_key_values) is type(theirs.past_key_values)
        assert vars(mine.past_key_values).keys() == vars(theirs.past_key_values).keys()
        for a, b in zip(mine.past_key_values.layers, theirs.past_key_values.layers, strict=True):
            assert type(a) is type(b)
            assert vars(a).keys() == vars(b).keys()
            torch.testing.assert_close(a.keys, b.keys)
            torch.testing.assert_close(a.values, b.values)
        torch.testing.assert_close(
            model(following, past_key_values=mine.past_key_values).logits,
            model(following, past_key_values=theirs.past_key_values).logits,
        )
        assert mine.past_key_values.get_seq_length() == length + 1
    assert fast.report().answered == 2
    found = fast.generate(ids, max_new_tokens=2, do_sample=False)
    assert found.tolist() == model.generate(ids, max_new_tokens=2, do_sample=False).tolist()
