"""ONNX signal operators. (The window functions have function bodies of onnx's own.)"""

from __future__ import annotations

from hotfuse.frontends.onnx_node import ONNX_DTYPES, Imported, OnnxNode, onnx_op


@onnx_op("DFT")
def dft(n: OnnxNode) -> Imported:
    attrs = {"inverse": bool(n.attr("inverse", 0)), "onesided": bool(n.attr("onesided", 0))}
    if n.version < 20:
        return n.add("dft", n.input(0), n.optional(1), axis=n.attr("axis", 1), **attrs)
    return n.add("dft", n.input(0), n.optional(1), n.optional(2), axis=-2, **attrs)


@onnx_op("STFT")
def stft(n: OnnxNode) -> Imported:
    return n.add("stft", n.input(0), n.input(1), n.optional(2), n.optional(3), onesided=bool(n.attr("onesided", 1)))


@onnx_op("MelWeightMatrix")
def mel_weight_matrix(n: OnnxNode) -> Imported:
    return n.add("mel_weight_matrix", *(n.input(i) for i in range(5)), to=ONNX_DTYPES[n.attr("output_datatype", 1)])
