"""PyTorch graphs as IR: every importer against eager, and what must stay opaque."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch.fx.node import _side_effectful_functions

from hotfuse.config import Config
from hotfuse.errors import CaptureError, DimError, InputError, LimitExceeded, UnsupportedModel
from hotfuse.frontends import torch_node
from hotfuse.frontends.torch_dim import from_sympy
from hotfuse.frontends.torch_export import import_exported
from hotfuse.frontends.torch_graph import TorchImport, import_fx
from hotfuse.frontends.torch_node import Decline, TorchNode, type_from_meta
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import evaluate
from hotfuse.ir.text import parse_graph, print_graph
from hotfuse.ir.types import U8
from hotfuse.ir.verify import verify
from hotfuse.runtime.torch_exported import ExportedModel, compile_exported

AUTO = torch.export.Dim.AUTO


class Wrapped(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def exported(function: Any, *args: Any, dynamic: bool = False) -> Any:
    module = function if isinstance(function, torch.nn.Module) else Wrapped(function)
    shapes = tuple(dict.fromkeys(range(a.dim()), AUTO) if isinstance(a, torch.Tensor) else None for a in args)
    wanted = ((shapes,) if isinstance(module, Wrapped) else shapes) if dynamic else None
    return torch.export.export(module.eval(), args, dynamic_shapes=wanted)


def compiled(function: Any, *args: Any, dynamic: bool = False) -> ExportedModel:
    model = compile_exported(exported(function, *args, dynamic=dynamic), Config(strict=True))
    verify(model.graph)
    text = print_graph(model.graph)
    assert print_graph(parse_graph(text, {k: c.data for k, c in model.graph.constants.items()})) == text
    return model


def check(function: Any, *args: Any, dynamic: bool = False, others: tuple[tuple[Any, ...], ...] = ()) -> ExportedModel:
    model = compiled(function, *args, dynamic=dynamic)
    with torch.no_grad():
        for given in (args, *others):
            torch.testing.assert_close(model(*given), function(*given))
    return model


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


X, Y, POSITIVE = rand(3, 4), rand(3, 4, seed=1), rand(3, 4).abs() + 0.5
INTS = torch.arange(12).reshape(3, 4) - 5
MASK = X > 0

EXACT = {
    "view": lambda x: x.view(2, 6).reshape(-1, 3),
    "permute": lambda x: x.permute(1, 0).contiguous(),
    "transpose": lambda x: x.transpose(-1, 0).unsqueeze(1).squeeze(1),
    "expand": lambda x: x.unsqueeze(0).expand(2, -1, 4),
    "slice": lambda x: x[1:, ::2] + x[-2:, 1:3],
    "select": lambda x: x[-1] + x[0],
    "unbind": lambda x: sum(x.unbind(0)),
    "split": lambda x: x.split([1, 3], 1)[1],
    "chunk": lambda x: x.chunk(3, 1)[0],
    "cat": lambda x: torch.cat([x, x + 1, (x > 0)], -1),
    "stack": lambda x: torch.stack([x, x], 1),
    "flip": lambda x: x.flip(0, 1),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "roll": lambda x: torch.roll(x, (1, -2), (0, 1)),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=0.5),
    "tril": lambda x: torch.tril(x, -1) + torch.triu(x, 1),
    "full": lambda x: x + torch.full_like(x, 0.1) + torch.ones(4) + x.new_zeros(3, 1),
    "arange": lambda x: torch.arange(2, 14, 3)[:, None] + torch.arange(4),
    "embedding": lambda x: F.embedding(torch.tensor([[0, 2], [1, 1]]), x),
    "index_one": lambda x: x[:, torch.tensor([0, 3, -1])],
    "index_two": lambda x: x[torch.tensor([0, 2]), torch.tensor([1, -1])],
    "index_inner": lambda x: x.reshape(1, 3, 2, 2)[:, :, torch.tensor([0, 1]), torch.tensor([[1], [0]])],
    "index_put": lambda x: x.index_put((torch.tensor([0, 2]), torch.tensor([1, -1])), torch.tensor([5.0, 6.0])),
    "index_add": lambda x: x.index_put((torch.tensor([1, 1]),), x[:2], accumulate=True),
    "index_put_inner": lambda x: torch.ops.aten.index_put(x.reshape(2, 3, 2), [None, torch.tensor([2, 0])], x[0, :2]),
    "slice_scatter": lambda x: x.slice_scatter(x[:, :2] * 2, 1, 1, 3).slice_scatter(x[:1], 0, -1),
    "negative_pad": lambda x: F.pad(x, (-1, 1, 0, -1)),
    "index_select": lambda x: x.index_select(1, torch.tensor([3, 0])),
    "gather": lambda x: x.gather(1, torch.tensor([[0, 1], [2, 3], [3, 3]])),
    "scatter": lambda x: x.scatter(1, torch.tensor([[0, 1], [2, 3], [3, 0]]), 5.0),
    "topk": lambda x: tuple(x.topk(2, 1)),
    "sort": lambda x: tuple(x.sort(0, descending=True)),
    "where": lambda x: torch.where(x > 0, x, 0) + x.masked_fill(x < 0, -1.5),
    "clamp": lambda x: x.clamp(-0.5, 0.5).clamp_min(-0.2),
    "compare": lambda x: (x >= 0) & (x < 1) | (x == 2) ^ (x != 3),
    "logic": lambda x: torch.logical_and(x, x > 0) | torch.logical_not(x),
    "argmax": lambda x: (x.argmax(1), x.argmin(0, keepdim=True), x.amax(0), x.max(), x.max(1).values),
    "any": lambda x: ((x > 1).any(1), (x > -9).all()),
    "cast": lambda x: (x.half().float(), x.to(torch.int32), x.double()),
    "sign": lambda x: (x.sign(), x.abs(), -x, x.floor(), x.ceil(), x.trunc(), x.round()),
    "half_scalar": lambda x: x.bfloat16() * 0.1 + 0.3,
    "int_float": lambda x: torch.arange(4) * 0.5 + x,
    "int_division": lambda x: (torch.arange(-5, 7) // 4, torch.arange(-5, 7) % 4, torch.arange(-5, 7) / 4),
    "trunc_division": lambda x: torch.div(torch.arange(-5, 7), 4, rounding_mode="trunc"),
}  # fmt: skip

CLOSE = {
    "functions": lambda x: x.exp() + x.sin() * x.cos() - x.tanh() / (1 + x.sigmoid()) + x.erf() + x.abs().sqrt(),
    "powers": lambda x: x**2 + x.abs() ** 1.5 + 2**x + x.abs().rsqrt(),
    "alpha": lambda x: torch.add(x, x, alpha=0.3) + torch.sub(x, 1, alpha=2) + (1 - x),
    "activations": lambda x: F.gelu(x) + F.gelu(x, approximate="tanh") + F.silu(x) + F.leaky_relu(x, 0.2) + F.elu(x, 0.7),
    "softplus": lambda x: F.softplus(x, 2.0, 1.0) + F.hardtanh(x) + F.relu(x),
    "sum": lambda x: x.sum() + x.sum(0) + x.mean(1, keepdim=True) + x.prod(1)[0] + x.cumsum(1).sum(),
    "var": lambda x: x.var(1) + x.std(1, correction=0) + torch.var_mean(x, 1)[1],
    "softmax": lambda x: x.softmax(-1) + x.log_softmax(0),
    "layer_norm": lambda x: F.layer_norm(x, (4,), x[0], x[1]) + F.layer_norm(x, (3, 4)),
    "rms_norm": lambda x: F.rms_norm(x, (4,), x[0], 1e-5),
    "group_norm": lambda x: F.group_norm(x[None].expand(2, 3, 4), 3, x[:, 0], x[:, 1]),
    "batch_norm": lambda x: F.batch_norm(x, x[0], x[1].abs(), x[2], None),
    "linear": lambda x: F.linear(x, x, x[:, 0]) + x @ x.T + torch.addmm(x[:, :3], x, x.T, beta=0.5, alpha=2.0),
    "matmul": lambda x: torch.matmul(x.expand(2, 3, 4), x[0]) + torch.bmm(x[None], x.T[None])[0, :, 0],
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "conv": lambda x: F.conv2d(x.reshape(1, 1, 3, 4), x.reshape(2, 1, 2, 3), x[:2, 0], stride=2, padding=1),
    "conv1d": lambda x: F.conv1d(x[None], x.reshape(6, 1, 2), groups=3, dilation=2, padding="same"),
    "conv_transpose": lambda x: F.conv_transpose2d(x.reshape(1, 1, 3, 4), x.reshape(1, 2, 2, 3), stride=2, output_padding=1),
    "pool": lambda x: F.max_pool2d(x[None], 2, ceil_mode=True) + F.avg_pool2d(x[None], 2, padding=1)[..., :2],
    "adaptive": lambda x: F.adaptive_avg_pool2d(x[None], 1),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.reshape(1, 2, 3, 2)] * 3),
    "causal": lambda x: F.scaled_dot_product_attention(*[x.reshape(1, 2, 3, 2)] * 3, is_causal=True, scale=0.3),
    "masked": lambda x: F.scaled_dot_product_attention(*[x.reshape(1, 2, 3, 2)] * 3, attn_mask=torch.ones(3, 3).tril() > 0),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_movement_and_choices_are_bit_equal(name: str) -> None:
    model = compiled(EXACT[name], X)
    for ours, theirs in zip(
        torch.utils._pytree.tree_leaves(model(X)), torch.utils._pytree.tree_leaves(EXACT[name](X)), strict=True
    ):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    assert not model.opaque


@pytest.mark.parametrize("name", CLOSE)
def test_arithmetic_is_close_and_known(name: str) -> None:
    assert not check(CLOSE[name], X).opaque


def test_half_types_are_rounded_once() -> None:
    x = rand(64, dtype=torch.bfloat16)

    def function(t: torch.Tensor) -> torch.Tensor:
        return (t * 0.1 + 0.7) / 0.3 - (t > 0.7) * 0.9

    assert torch.equal(compiled(function, x)(x), function(x))


def test_one_graph_serves_all_shapes() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0] * x.shape[1]
        flat = torch.cat([x.reshape(rows, -1), y.reshape(rows, -1)], 1)
        return flat.softmax(-1).reshape(x.shape[0], -1)[:, 1:] + torch.arange(x.shape[0])[:, None]

    pairs = tuple((rand(b, s, 4), rand(b, s, 4)) for b, s in ((2, 3), (5, 2), (3, 7)))
    model = check(function, *pairs[0], dynamic=True, others=pairs[1:])
    assert not model.opaque
    assert model.report().bound_shapes == 3


def test_sizes_translate_exactly() -> None:
    from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, PythonMod

    s, t = sympy.symbols("s0 s1", integer=True, positive=True)
    for expr in (
        s + 2 * t,
        s * t - 3,
        s**3,
        FloorDiv(s + 1, 2),
        Mod(s, 4),
        PythonMod(s, t),
        Max(s, t, 5),
        Min(s, 7),
        CleanDiv(6 * s, 2),
    ):
        value = int(expr.subs({s: 11, t: 3}))
        assert evaluate(from_sympy(expr, lambda _: 0), {"s0": 11, "s1": 3}) == value


@pytest.mark.parametrize("text", ["sqrt(s0)", "s0**s1", "sin(s0)"])
def test_sizes_without_an_exact_form_are_refused(text: str) -> None:
    with pytest.raises(DimError, match="no exact form"):
        from_sympy(sympy.sympify(text), lambda _: 0)


def test_numbers_that_are_not_whole() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * (x.shape[0] ** 0.5) + x.shape[1] / 3

    check(function, rand(4, 5), dynamic=True, others=((rand(7, 2),),))


@pytest.mark.parametrize("flag", [-1.0, 1.0])
def test_cond_becomes_a_nested_graph(flag: float) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t * 2, (x,))

    model = check(function, X.abs() * flag)
    assert "if" in [node.op for node in model.graph.nodes]


def test_while_loop_becomes_a_nested_graph() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    class Loop(torch.nn.Module):
        def forward(self, i: torch.Tensor, x: torch.Tensor) -> Any:
            return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.5), (i, x))

    model = compile_exported(torch.export.export(Loop(), (torch.tensor(0), X)), Config())
    assert "while" in [node.op for node in model.graph.nodes]
    torch.testing.assert_close(model(torch.tensor(2), X)[1], X * 1.5**3)


@torch.library.custom_op("hotfuse_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_custom_operators_stay_opaque_and_run() -> None:
    model = check(lambda x: twice(x) + 1, X)
    ((origin, name, reason),) = model.opaque
    assert name == "hotfuse_test.twice.default"
    assert "no operator here" in reason
    assert "test_torch_graph.py" in origin


def test_random_operators_consume_the_generator_as_eager_does() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(4) + torch.randn_like(x).bernoulli(0.5)

    model = compiled(function, X)
    torch.manual_seed(7)
    expected = function(X)
    after = torch.rand(1)
    torch.manual_seed(7)
    assert torch.equal(model(X), expected)
    assert torch.equal(torch.rand(1), after)


def test_random_numbers_that_nobody_reads_are_drawn() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)  # it moves the generator
        torch.randn_like(x)
        return F.dropout(x + torch.rand(4), 0.5)

    before = set(_side_effectful_functions)
    model = compiled(function, X)
    torch.manual_seed(7)
    expected = function(X)
    after = torch.rand(1)
    torch.manual_seed(7)
    assert torch.equal(model(X), expected)
    assert torch.equal(torch.rand(1), after)
    assert before == _side_effectful_functions


def test_random_numbers_that_are_lost_on_the_way_are_refused() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        F.dropout(x, 0.5)  # taken apart, and its parts are dropped
        return x + 1

    with pytest.raises(CaptureError, match="nobody reads"):
        import_exported(exported(function, X))


def test_sizes_that_depend_on_data() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        places = x.nonzero()
        return places.to(torch.float32) * 2 + x.sum().round().int().item()

    model = check(function, X)
    with torch.no_grad():
        other = X.clone()
        other[0] = 0
        torch.testing.assert_close(model(other), function(other))


def test_a_disagreement_with_tracing_stays_opaque(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch_node.IMPORTERS, "aten.tanh.default", lambda n, x: n.add("unsqueeze", x, axes=(0,)))
    model = check(torch.tanh, X)
    ((_, name, reason),) = model.opaque
    assert name == "aten.tanh.default"
    assert "tracing gave" in reason
    assert [node.op for node in model.graph.nodes] == ["torch_op"]  # nothing of the failed import is left


def test_a_declined_operator_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch_node.IMPORTERS, "aten.tanh.default", lambda n, x: Decline("on Sundays"))
    assert check(torch.tanh, X).opaque[0][2] == "on Sundays"


def test_origins_name_the_layer_and_the_line() -> None:
    model = compiled(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.GELU())), X)
    origin = next(node.origin for node in model.graph.nodes if node.op == "gelu")
    assert origin.layer == "1.0"
    assert origin.operator == "aten.gelu.default"
    assert origin.source.startswith("activation.py:")


def test_node_limit() -> None:
    with pytest.raises(LimitExceeded, match="max_nodes"):
        import_exported(exported(lambda x: x.exp().sin().cos().tan(), X), Config(max_nodes=2))


def test_mutations_and_aliases_are_eagers() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            self.seen.add_(x.sum(0))
            x.mul_(2)
            return {"same": x, "view": y.view(-1)[2:], "own": y.clone(), "seen": self.seen + 0, "input": y}

    mine, theirs = Counter(), Counter()
    model = compile_exported(torch.export.export(mine, (X.clone(), Y.clone())), Config())
    for _ in range(2):
        x1, x2, y1, y2 = X.clone(), X.clone(), Y.clone(), Y.clone()
        ours, expected = model(x1, y1), theirs(x2, y2)
        assert list(ours) == list(expected)
        for name in ours:
            assert torch.equal(ours[name], expected[name]), name
        assert torch.equal(x1, x2)
        assert ours["same"] is x1
        assert ours["input"] is y1
        assert ours["view"].data_ptr() == y1[0, 2:].data_ptr()
        assert ours["own"].data_ptr() != y1.data_ptr()


def test_results_are_laid_out_as_eager_lays_them_out() -> None:
    def function(x: torch.Tensor) -> Any:
        return x.permute(1, 0).contiguous() + 0, (x + 1).permute(1, 0), x.T.clone()

    model = compiled(function, X)
    for ours, theirs in zip(model(X), function(X), strict=True):
        assert ours.stride() == theirs.stride()


def test_operators_that_reach_around_strides_see_eagers_memory() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        moved = (x + 1).permute(1, 0).contiguous()  # a copy for eager, the same value here
        return moved.as_strided((2, 3), (1, 2), 1) + x[1:].clone().as_strided((2, 3), (3, 1))

    assert torch.equal(compiled(function, X)(X), function(X))


def test_memory_that_cannot_be_laid_out_again_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="layout cannot be reproduced"):
        import_exported(exported(lambda x: (x + 1)[1:, 1:].as_strided((2,), (1,), 0), X))


def test_gradients_come_from_torch_itself() -> None:
    layer = torch.nn.Linear(4, 2)
    model = compile_exported(torch.export.export(layer, (X,)), Config())
    model(X).sum().backward()
    assert model._weights["weight"].grad is not None
    assert model.events.of("serve.eager")


@pytest.mark.parametrize(
    ("args", "kwargs", "what"),
    [
        ((rand(3, 5), 1), {}, "tensor 0 has size 5 at axis 1, not 4; the program was exported for args_0\\[3, 4\\]"),
        ((rand(3, 4).double(), 1), {}, "elements of type torch.float32, not torch.float64"),
        ((rand(3, 4),), {}, "structure"),
    ],
)
def test_wrong_arguments_are_refused(args: tuple[Any, ...], kwargs: dict[str, Any], what: str) -> None:
    model = compile_exported(exported(lambda x, n: x * n, X, 1), Config())
    with pytest.raises(InputError, match=what):
        model(*args, **kwargs)


def test_constants_without_values_are_refused() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    graph = torch.fx.Graph()
    graph.output((graph.get_attr("held"),))
    root = torch.nn.Module()
    with FakeTensorMode():
        root.register_buffer("held", torch.ones(2))
    with pytest.raises(CaptureError, match="not known here"):
        import_fx(torch.fx.GraphModule(root, graph), TorchImport())


@pytest.mark.parametrize(
    "value",
    [torch.empty(2, device="meta"), torch.eye(2).to_sparse(), torch.quantize_per_tensor(torch.ones(1), 1, 0, torch.qint8)],
)
def test_tensors_elsewhere_or_of_other_layouts_are_refused(value: torch.Tensor) -> None:
    with pytest.raises(UnsupportedModel, match="not covered"):
        type_from_meta(value)


@pytest.mark.parametrize("number", [0.5, 300, float("inf"), float("nan"), 1j])
def test_numbers_that_do_not_fit_a_type_are_refused(number: Any) -> None:
    with pytest.raises(UnsupportedModel, match="does not fit"):
        TorchNode("aten.add.Scalar", GraphBuilder(), ()).number(number, U8)


def test_every_importer_names_an_operator_of_torch() -> None:
    from hotfuse.frontends.torch_template import find_operator

    for name in (*torch_node.IMPORTERS, *torch_node.COMPOSITES):
        assert callable(find_operator(name)), name
