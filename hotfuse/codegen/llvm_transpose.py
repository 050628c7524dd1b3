"""Transposing in registers: vectors along one axis of a block become vectors along the other, by shuffles alone.

    the lanes of columns 0, 1, 2, 3            the lanes of rows 0, 1, 2, 3
        a0 a1 a2 a3                                 a0 b0 c0 d0
        b0 b1 b2 b3             ->                  a1 b1 c1 d1
        c0 c1 c2 c3                                 a2 b2 c2 d2
        d0 d1 d2 d3                                 a3 b3 c3 d3

A lane's place has as many bits as the number of its vector, and each step exchanges one bit of each, for all pairs of vectors
that differ in that bit. Both kinds of step are one instruction on x86: inside of 16 bytes two vectors are interleaved, which
moves all bits of a place up by one, so that the highest bit goes first; whole parts of 16 bytes are dealt out in turn, which
moves them down, so that the lowest goes first.
"""

from __future__ import annotations

from collections.abc import Sequence

from hotfuse.codegen.llvm_text import LType, Operand, Writer

PART = 128  # bits of a vector that cheap shuffles stay in


def transposed(w: Writer, columns: Sequence[Operand]) -> list[Operand]:
    """The rows of columns, which are equally long; their length is a power of two. Lane j of row i is lane i of column j."""
    height, width = columns[0].type.lanes, len(columns)
    whole = max(height, 1 << (width - 1).bit_length())
    missing = Operand(columns[0].type, "poison")
    padded = [*columns, *[missing] * (whole - width)]
    # Columns a height apart share a vector, in which each has its own segment.
    vectors = [_joined(w, padded[i::height]) for i in range(height)]
    part = min(height, PART // columns[0].type.bits)
    for apart in (*_powers(part)[::-1], *(part * p for p in _powers(height // part))):
        low, high = _interleaved(whole, part) if apart < part else _dealt(whole, height, part)
        for i in range(height):
            if not i & apart:
                pair = vectors[i], vectors[i + apart]
                vectors[i], vectors[i + apart] = _shuffled(w, *pair, low), _shuffled(w, *pair, high)
    return vectors if whole == width else [_shuffled(w, v, v, range(width)) for v in vectors]


def _powers(below: int) -> list[int]:
    return [1 << i for i in range((below - 1).bit_length())]


def _joined(w: Writer, vectors: Sequence[Operand]) -> Operand:
    """One vector after the other; they are a power of two many."""
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [_shuffled(w, a, b, range(2 * a.type.lanes)) for a, b in pairs]
    return vectors[0]


def _interleaved(lanes: int, part: int) -> tuple[list[int], list[int]]:
    """Of each part of two vectors, the lower halves lane by lane in turn, and the upper halves."""
    low = [start + i // 2 + i % 2 * lanes for start in range(0, lanes, part) for i in range(part)]
    return low, [i + part // 2 for i in low]


def _dealt(lanes: int, segment: int, part: int) -> tuple[list[int], list[int]]:
    """Of each segment of two vectors, one after the other, every other part, and the parts between."""
    segments = [start + source for start in range(0, lanes, segment) for source in (0, lanes)]
    low = [start + place + i for start in segments for place in range(0, segment, 2 * part) for i in range(part)]
    return low, [i + part for i in low]


def _shuffled(w: Writer, a: Operand, b: Operand, picks: Sequence[int]) -> Operand:
    """The picked lanes of two vectors, which are numbered through."""
    type = LType(a.type.element, len(picks))
    return w.make(type, f"shufflevector {a}, {b}, <{len(picks)} x i32> <{', '.join(f'i32 {i}' for i in picks)}>")
