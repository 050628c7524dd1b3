"""Convolution, pooling and patches against torch, by the float64 rule; their geometry against counting; their refusals."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import hotfuse.ir.ops.convolution as convolution
import hotfuse.ir.ops.window as window
from hotfuse.errors import InvalidModel, LimitExceeded
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import substitute, symbol
from hotfuse.ir.op import OPS
from hotfuse.ir.ops.window import padded, window_count
from hotfuse.ir.types import F32, I32, TensorType, tensor
from hotfuse.numerics import close_to_exact, same_bits

RNG = np.random.default_rng(7)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def torch_pads(pads: tuple[int, ...]) -> list[int]:
    n = len(pads) // 2
    return [p for i in reversed(range(n)) for p in (pads[i], pads[i + n])]


def judge(op: str, inputs: list[Any], attrs: dict[str, Any], theirs: Any) -> None:
    """The reference of `op` against `theirs`, a function of torch tensors, in the inputs' type and in float64."""
    ours = OPS[op].reference(*inputs, **attrs)
    arrays = [None if x is None else torch.from_numpy(x) for x in inputs]
    original = theirs(*arrays).numpy()
    exact = theirs(*(None if x is None else x.double() for x in arrays)).numpy()
    verdict = close_to_exact(np.asarray(ours), original, exact)
    assert verdict, verdict.reason


CONVOLUTIONS = {
    "plain": ((2, 8, 12, 11), (6, 8, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "strided": ((1, 4, 15, 16), (8, 4, 3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1),
    "asymmetric pads": ((1, 4, 9, 9), (5, 4, 3, 2), (2, 1), (0, 2, 1, 0), (1, 1), 1),
    "dilated": ((1, 3, 14, 13), (4, 3, 3, 3), (1, 2), (2, 1, 2, 1), (2, 3), 1),
    "pointwise": ((2, 16, 7, 5), (9, 16, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    "pointwise strided and padded": ((2, 16, 7, 5), (9, 16, 1, 1), (2, 3), (1, 0, 1, 0), (1, 1), 1),
    "groups": ((2, 8, 9, 9), (12, 2, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 4),
    "pointwise groups": ((2, 8, 5, 5), (12, 4, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 2),
    "depthwise": ((2, 6, 9, 8), (6, 1, 3, 3), (1, 2), (1, 1, 1, 1), (1, 1), 6),
    "depthwise multiplied": ((1, 4, 9, 8), (12, 1, 3, 2), (2, 1), (1, 0, 1, 1), (2, 1), 4),
    "one axis": ((2, 5, 30), (7, 5, 4), (3,), (2, 1), (2,), 1),
    "three axes": ((1, 3, 6, 7, 5), (4, 3, 2, 3, 2), (1, 2, 1), (1, 0, 1, 0, 1, 0), (1, 1, 2), 1),
    "one input channel": ((1, 1, 8, 8), (4, 1, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    "no images": ((0, 3, 8, 8), (4, 3, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1),
}


def torch_conv(x: Any, w: Any, bias: Any, strides: Any, pads: Any, dilations: Any, groups: int) -> Any:
    function = (F.conv1d, F.conv2d, F.conv3d)[len(strides) - 1]
    return function(F.pad(x, torch_pads(pads)), w, bias, strides, 0, dilations, groups)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv(name: str, with_bias: bool) -> None:
    shape, weight, strides, pads, dilations, groups = CONVOLUTIONS[name]
    inputs = [normal(*shape), normal(*weight), normal(weight[0]) if with_bias else None]
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
    judge("conv", inputs, attrs, lambda x, w, b: torch_conv(x, w, b, **attrs))


@pytest.mark.parametrize("name", ["plain", "strided", "groups", "one axis", "three axes", "depthwise"])
def test_conv_in_small_blocks_gives_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, weight, strides, pads, dilations, groups = CONVOLUTIONS[name]
    inputs = [normal(*shape), normal(*weight), None]
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
    monkeypatch.setattr(convolution, "PATCH_BYTES", 4000)
    monkeypatch.setattr(convolution, "DEPTHWISE_BYTES", 400)
    judge("conv", inputs, attrs, lambda x, w, b: torch_conv(x, w, b, **attrs))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_summed_in_float32(dtype: str) -> None:
    x, w = normal(1, 64, 6, 6), normal(3, 64, 3, 3)
    x, w = (torch.from_numpy(a).to(getattr(torch, dtype)).float().numpy() for a in (x, w))
    import ml_dtypes

    small = np.dtype(getattr(ml_dtypes, dtype, dtype))
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    ours = OPS["conv"].reference(x.astype(small), w.astype(small), None, **attrs)
    wide = OPS["conv"].reference(x, w, None, **attrs)
    assert same_bits(ours, wide.astype(small))


def test_integers_are_exact_beyond_float64() -> None:
    attrs = {"strides": (1,), "pads": (0, 0), "dilations": (1,), "groups": 1}
    x = np.array([[[2**40 + 1, 3, 2**41 + 5]]])
    w = np.array([[[2**20 + 1, 7]]])
    expected = [x[0, 0, i] * w[0, 0, 0] + x[0, 0, i + 1] * w[0, 0, 1] for i in range(2)]
    np.testing.assert_array_equal(OPS["conv"].reference(x, w, **attrs)[0, 0], expected)


@pytest.mark.parametrize(
    ("shape", "weight", "strides", "pads", "dilations", "groups", "extra"),
    [
        ((2, 4, 6, 5), (4, 3, 3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1, (1, 0)),
        ((1, 6, 5, 5), (6, 2, 2, 3), (1, 3), (0, 1, 0, 1), (2, 1), 3, (0, 2)),
        ((2, 3, 9), (3, 5, 4), (2,), (1, 1), (1,), 1, (1,)),
        ((1, 2, 4, 3, 4), (2, 3, 2, 3, 2), (2, 1, 2), (0, 1, 0, 0, 1, 0), (1, 1, 1), 1, (0, 0, 1)),
    ],
)
def test_conv_transpose(shape: Any, weight: Any, strides: Any, pads: Any, dilations: Any, groups: int, extra: Any) -> None:
    n = len(strides)
    inputs = [normal(*shape), normal(*weight), normal(weight[1] * groups)]
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups, "output_padding": extra}
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
    judge("conv_transpose", inputs, attrs, lambda x, w, b: function(x, w, b, strides, pads[:n], extra, groups, dilations))


def test_conv_transpose_with_negative_pads_grows() -> None:
    x, w = normal(1, 1, 3), normal(1, 1, 3)
    attrs = {"strides": (1,), "dilations": (1,), "groups": 1, "output_padding": (0,)}
    plain = OPS["conv_transpose"].reference(x, w, None, pads=(0, 0), **attrs)
    wider = OPS["conv_transpose"].reference(x, w, None, pads=(-1, -2), **attrs)
    np.testing.assert_array_equal(wider, np.pad(plain, ((0, 0), (0, 0), (1, 2))))


POOLS = [
    ((2, 3, 9, 10), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), False),
    ((2, 3, 9, 10), (3, 2), (2, 3), (1, 1, 1, 1), (1, 1), True),
    ((1, 2, 11, 12), (2, 3), (1, 2), (0, 1, 0, 1), (2, 1), True),
    ((2, 3, 17), (4,), (3,), (2, 2), (1,), True),
    ((1, 2, 6, 7, 5), (2, 3, 2), (2, 1, 2), (1, 1, 0, 1, 1, 0), (1, 1, 1), False),
    ((1, 2, 5, 5), (1, 1), (2, 2), (0, 0, 0, 0), (1, 1), False),
]


def pool_attrs(case: Any) -> dict[str, Any]:
    _, kernel, strides, pads, dilations, ceil = case
    return {"kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations, "ceil": ceil}


@pytest.mark.parametrize("case", POOLS, ids=str)
@pytest.mark.parametrize("tied", [False, True])
def test_max_pool_and_its_indices(case: Any, tied: bool) -> None:
    shape, kernel, strides, pads, dilations, ceil = case
    x = RNG.integers(0, 3, shape).astype(np.float32) if tied else normal(*shape)
    n = len(kernel)
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n - 1]
    values, indices = function(torch.from_numpy(x), kernel, strides, pads[:n], dilations, ceil, return_indices=True)
    assert same_bits(OPS["max_pool"].reference(x, **pool_attrs(case)), values.numpy())
    ours, places = OPS["max_pool_indices"].reference(x, **pool_attrs(case))
    assert same_bits(ours, values.numpy())
    assert same_bits(places, indices.numpy())


def test_max_pool_keeps_nan_and_never_chooses_padding() -> None:
    x = np.full((1, 1, 4), -np.inf, np.float32)
    x[0, 0, 3] = np.nan
    attrs = {"kernel": (2,), "strides": (2,), "pads": (1, 1), "dilations": (1,), "ceil": False}
    values, places = OPS["max_pool_indices"].reference(x, **attrs)
    assert same_bits(values, np.array([[[-np.inf, -np.inf, np.nan]]], np.float32))
    np.testing.assert_array_equal(places, [[[0, 1, 3]]])
    assert same_bits(OPS["max_pool"].reference(x, **attrs), values)


def test_max_pool_of_integers() -> None:
    x = np.array([[[-128, -5, 3, -7]]], np.int8)
    attrs = {"kernel": (2,), "strides": (1,), "pads": (1, 0), "dilations": (1,), "ceil": False}
    np.testing.assert_array_equal(OPS["max_pool"].reference(x, **attrs), [[[-128, -5, 3, 3]]])


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("case", [c for c in POOLS if set(c[4]) == {1}], ids=str)
def test_average_pool(case: Any, include: bool) -> None:
    shape, kernel, strides, pads, _, ceil = case
    function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel) - 1]
    attrs = {**pool_attrs(case), "count_include_pad": include}
    judge("average_pool", [normal(*shape)], attrs, lambda x: function(x, kernel, strides, pads[: len(kernel)], ceil, include))


def test_average_pool_with_a_divisor() -> None:
    attrs = {**pool_attrs(POOLS[0]), "divisor": 5}
    judge("average_pool", [normal(2, 3, 9, 10)], attrs, lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5))


def test_lp_pool() -> None:
    attrs = {"kernel": (3, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1), "ceil": False, "p": 3.0}
    x = np.abs(normal(2, 3, 9, 8))  # torch leaves the sign in for odd p
    judge("lp_pool", [x], attrs, lambda x: F.lp_pool2d(x, 3.0, (3, 2), 2))


def test_patches_and_back() -> None:
    x = normal(2, 3, 8, 9)
    window = {"strides": (2, 1), "pads": (1, 2, 1, 2), "dilations": (1, 2)}
    theirs = F.unfold(torch.from_numpy(x), (3, 2), (1, 2), (1, 2), (2, 1))
    columns = OPS["im2col"].reference(x, kernel=(3, 2), **window)
    assert same_bits(columns, theirs.numpy())
    folded = F.fold(theirs, (8, 9), (3, 2), (1, 2), (1, 2), (2, 1))
    np.testing.assert_allclose(
        OPS["col2im"].reference(columns, np.array([8, 9]), np.array([3, 2]), **window), folded, rtol=1e-6
    )


def test_deform_conv_without_offsets_is_conv() -> None:
    x, w, bias = normal(2, 4, 7, 7), normal(6, 2, 3, 3), normal(6)
    attrs = {"strides": (2, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 2}
    plain = OPS["conv"].reference(x, w, bias, **attrs)
    offsets = np.zeros((2, 2 * 9, *plain.shape[2:]), np.float32)
    np.testing.assert_allclose(OPS["deform_conv"].reference(x, w, offsets, bias, None, **attrs), plain, rtol=1e-5, atol=1e-5)


def test_memory_that_is_not_contiguous_is_written_too() -> None:
    x, w = normal(1, 3, 6, 6), normal(4, 3, 3, 3)
    attrs = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
    expected = OPS["conv"].reference(x, w, None, **attrs)
    memory = np.zeros((1, 4, 4, 8), np.float32)[..., ::2]
    assert OPS["conv"].reference(x, w, None, **attrs, out=memory) is memory
    assert same_bits(np.ascontiguousarray(memory), expected)


# geometry


@given(
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(1, 3),
    st.booleans(),
)
def test_window_count_counts_windows(
    size: int, kernel: int, stride: int, before: int, after: int, dilation: int, ceil: bool
) -> None:
    span = (kernel - 1) * dilation + 1
    if size + before + after < span:
        return
    starts = range(0, size + before + after, stride)
    whole = [s for s in starts if s + span <= size + before + after]
    if ceil and whole[-1] + span < size + before + after and whole[-1] + stride < size + before:
        whole.append(whole[-1] + stride)
    expected = [s for s in whole if s < size + before] if ceil else whole
    assert window_count(size, kernel, stride, before, after, dilation, ceil) == len(expected)
    symbolic = window_count(symbol("s", 1), kernel, stride, before, after, dilation, ceil)
    assert substitute(symbolic, {"s": size}) == len(expected)


def test_symbolic_sizes_flow_through() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, symbol("n"), 3, symbol("h"), symbol("w")))
    y = b.add("conv", x, b.constant(normal(8, 3, 3, 3)), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1), groups=1)
    z = b.add("max_pool", y, kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1), ceil=False)
    assert isinstance(z.type, TensorType)
    assert z.type.shape is not None
    assert tuple(substitute(d, {"n": 2, "h": 224, "w": 225}) for d in z.type.shape) == (2, 8, 56, 56)


def test_nothing_is_copied_without_padding() -> None:
    x = normal(1, 2, 3, 3)
    assert padded(x, (0, 0, 0, 0)) is x
    np.testing.assert_array_equal(
        padded(x, (-1, 0, 0, 1), 5.0), np.pad(x[:, :, 1:], ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=5)
    )


# refusals

WINDOW = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
POOL = {**WINDOW, "kernel": (2, 2)}
REFUSED = [
    ("conv", [(1, 3, 8, 8), (4, 2, 3, 3)], WINDOW, "3 channels"),
    ("conv", [(1, 3, 8, 8), (4, 3, 3)], WINDOW, "same rank"),
    ("conv", [(1, 3, 2, 8), (4, 3, 3, 3)], WINDOW, "too small"),
    ("conv", [(1, 4, 8, 8), (5, 2, 3, 3)], {**WINDOW, "groups": 2}, "do not divide"),
    ("conv", [(1, 3, 8, 8), (4, 3, 3, 3), (5,)], WINDOW, "bias"),
    ("conv", [(1, 3, 8, 8), (4, 3, 3, 3)], {**WINDOW, "strides": (0, 1)}, "at least 1"),
    ("conv", [(1, 3, 8, 8), (4, 3, 3, 3)], {**WINDOW, "pads": (0, 0)}, "spatial axes"),
    ("conv_transpose", [(1, 3, 8, 8), (4, 2, 3, 3)], WINDOW, "3 channels"),
    ("conv_transpose", [(1, 3, 2, 2), (3, 2, 1, 1)], {**WINDOW, "pads": (1, 1, 1, 1)}, "take more than there is"),
    ("conv_transpose", [(1, 3, 2, 2), (3, 2, 1, 1)], {**WINDOW, "groups": 2}, "do not divide"),
    ("conv_transpose", [(1, 3, 2, 2), (3, 2, 1, 1)], {**WINDOW, "strides": (1,)}, "do not fit"),
    ("max_pool", [(1, 3, 1, 8)], POOL, "too small"),
    ("average_pool", [(1, 3, 8)], POOL, "spatial axes"),
    ("deform_conv", [(1, 2, 5), (3, 2, 2), (1, 4, 4)], {**WINDOW, "strides": (1,)}, "two spatial axes"),
    ("deform_conv", [(1, 3, 5, 5), (3, 2, 2, 2), (1, 8, 4, 4)], WINDOW, "3 channels"),
    ("deform_conv", [(1, 2, 5, 5), (3, 2, 2, 2), (1, 6, 4, 4)], WINDOW, "must have shape"),
]


@pytest.mark.parametrize(("op", "shapes", "attrs", "why"), REFUSED, ids=str)
def test_refusals(op: str, shapes: Any, attrs: Any, why: str) -> None:
    b = GraphBuilder()
    with pytest.raises(InvalidModel, match=why):
        b.add(op, *(b.input(f"x{i}", tensor(F32, *s)) for i, s in enumerate(shapes)), **attrs)


HUGE = 10**5


@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [
        ("conv", [normal(1, 4096, 1, 1), normal(1, 4096, 1, 1)], {"strides": (1, 1), "pads": (255,) * 4, "dilations": (1, 1)}),
        ("max_pool", [normal(1, 1, 4, 4)], {
            "strides": (9, 9), "pads": (HUGE,) * 4, "dilations": (1, 1), "kernel": (HUGE, HUGE)}),
        ("conv_transpose", [normal(1, 1, 2, 2), normal(1, 1, 2, 2)], {
            "strides": (HUGE, HUGE), "pads": (HUGE // 2,) * 4, "dilations": (1, 1)}),
        ("col2im", [normal(1, 4, 9), np.array([2, 2]), np.array([2, 2])], {
            "strides": (HUGE, HUGE), "pads": (HUGE,) * 4, "dilations": (1, 1)}),
    ],
)  # fmt: skip
def test_small_results_cannot_ask_for_huge_scratch(op: str, inputs: Any, attrs: Any) -> None:
    with pytest.raises(LimitExceeded, match="check the pads and strides"):
        OPS[op].reference(*inputs, **attrs)


@pytest.mark.parametrize(("size", "kernel", "pad", "stride"), [(1, 1, 255, 300), (2, 7, 255, 97), (3, 33, 255, 101)])
@pytest.mark.parametrize("groups", [1, 16])
def test_wide_padding_under_long_strides_costs_little(size: int, kernel: int, pad: int, stride: int, groups: int) -> None:
    # padded in full, 128 images of 511 x 511 elements are 134 MB of zeros
    x, w = normal(8, 16, size, size), normal(16, 16 // groups, kernel, kernel)
    attrs = {"strides": (stride,) * 2, "pads": (pad,) * 4, "dilations": (1, 1), "groups": groups}
    tracemalloc.start()
    OPS["conv"].reference(x, w, **attrs)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    judge("conv", [x, w, None], attrs, lambda x, w, _: F.conv2d(x, w, None, stride, pad, 1, groups))


@pytest.mark.parametrize("op", ["max_pool", "max_pool_indices", "average_pool", "lp_pool", "conv"])
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.filterwarnings("ignore:invalid value")  # the mean over a window of nothing
def test_windows_side_by_side_are_the_same_windows(op: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    kernel, strides, dilations = (tuple(rng.integers(1, n, 2).tolist()) for n in (4, 6, 3))
    attrs = {"strides": strides, "pads": tuple(rng.integers(0, 9, 4).tolist()), "dilations": dilations}
    if op != "conv":
        attrs |= {"kernel": kernel, "ceil": bool(seed % 2)} | ({"p": 2.0} if op == "lp_pool" else {})
    inputs = [normal(2, 3, 6, 7)] + ([normal(4, 3, *kernel)] if op == "conv" else [])
    plain = OPS[op].reference(*inputs, **attrs)
    monkeypatch.setattr(window, "SCRATCH_RATIO", 0)
    monkeypatch.setattr(window, "SPARSE_BYTES", 0)
    monkeypatch.setattr(window, "check_scratch", lambda *_: None)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (plain, OPS[op].reference(*inputs, **attrs))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)  # a tap that sees only padding is left out of the sum
        assert op == "conv" or same_bits(a, b)


def test_mixed_types_are_refused() -> None:
    b = GraphBuilder()
    with pytest.raises(InvalidModel, match="different types"):
        b.add("conv", b.input("x", tensor(F32, 1, 1, 4, 4)), b.input("w", tensor(I32, 1, 1, 2, 2)), **WINDOW)


def test_columns_that_do_not_fit_are_refused() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, 1, 8, 5))
    with pytest.raises(InvalidModel, match="do not fit"):
        b.add("col2im", x, b.constant(np.array([3, 3])), b.constant(np.array([2, 2])), **WINDOW)
