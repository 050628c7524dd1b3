"""What becomes of the turns of a loop that are made one block, as text before and after."""

from __future__ import annotations

from hotfuse.codegen.tile import TileProgram
from hotfuse.codegen.widen import widen
from tests.codegen.rewriting import Case

LOAD, MAP, STORE = "a = load x[i*n + j; 0, 0] 1x1", "b = map neg a", "store b to y[i*n + j; 0, 0] 1x1"
FOLD = """
  grid i m
  z = fill f32 1x1 0.0
  for j in [0 : n : 1] carry (acc = z -> next) {
    a = load x[i*n + j; 0, 0] 1x1
    next = map add acc a
  }
  store acc to s[i; 0, 0] 1x1
"""
PRODUCT = """
  z = fill f32 1x1 0.0
  for i in [0 : m : 1] free {
    for k in [0 : n : 1] carry (acc = z -> next) {
      a = load x[i*n + k; 0, 0] 1x1
      b = load w[k; 0, 0] 1x1
      next = dot a b acc
    }
    store acc to s[i; 0, 0] 1x1
  }
"""
NEXT = "next = map add acc a"
SPARE = "output v f32[2*n + 4]"  # instead of a grid: one task
FLAT = "a = load w[j; 0, 0] 1x1"
PAIR = "b = fill f32 1x2 1.0\n c = map add a b"


def point(load: str = LOAD, map: str = MAP, store: str = STORE, head: str = "grid i m", loop: str = "[0 : n : 1]") -> str:
    """A loop over elements, or another one with other lines in the places of these."""
    return f"{head}\n for j in {loop} {{\n {load}\n {map}\n {store}\n }}"


POINT = point()


def j4(program: TileProgram) -> TileProgram:
    return widen(program, "j", 4, axis=1)


CASES = (
    Case(
        "columns",
        j4,
        POINT,
        """
  grid i m
  for j in [0 : n : 4] {
    a = load x[i*n + j; 0, 1] 1x4 if ([j; 0, 1] < n)
    b = map neg a
    store b to y[i*n + j; 0, 1] 1x4 if ([j; 0, 1] < n)
  }
""",
    ),
    Case(
        "rows",
        lambda p: widen(p, "j", 4, axis=0),
        POINT,
        """
  grid i m
  for j in [0 : n : 4] {
    a = load x[i*n + j; 1, 0] 4x1 if ([j; 1, 0] < n)
    b = map neg a
    store b to y[i*n + j; 1, 0] 4x1 if ([j; 1, 0] < n)
  }
""",
    ),
    Case(
        "whole blocks need no bounds",
        j4,
        point(loop="[0 : n//4*4 : 1]"),
        """
  grid i m
  for j in [0 : 4*(n//4) : 4] {
    a = load x[i*n + j; 0, 1] 1x4
    b = map neg a
    store b to y[i*n + j; 0, 1] 1x4
  }
""",
    ),
    Case(
        "what does not move stays and broadcasts",
        j4,
        """
  grid i m
  for j in [0 : n : 1] free {
    c = fill f32 1x1 2.0
    d = load w[i; 0, 0] 1x1
    p = iota i32 1x1 [3*j + i; 0, 0]
    e = cast f32 p
    f = map mul d e
    g = map add f c
    prefetch x[i*n + j; 0, 0] 1x1 level 1
    store g to y[i*n + j; 0, 0] 1x1
  }
""",
        """
  grid i m
  for j in [0 : n : 4] free {
    c = fill f32 1x1 2.0
    d = load w[i; 0, 0] 1x1
    p = iota i32 1x4 [i + 3*j; 0, 3]
    e = cast f32 p
    f = map mul d e
    g = map add f c
    prefetch x[i*n + j; 0, 1] 1x4 level 1
    store g to y[i*n + j; 0, 1] 1x4 if ([j; 0, 1] < n)
  }
""",
    ),
    Case(
        "what is stored everywhere is written out",
        j4,
        "grid i m\n c = fill f32 1x1 2.0\n d = load w[i; 0, 0] 1x1\n for j in [0 : n : 1] {\n"
        " store c to y[i*n + j; 0, 0] 1x1\n store d to y[i*n + j; 0, 0] 1x1\n }",
        """
  grid i m
  c = fill f32 1x1 2.0
  d = load w[i; 0, 0] 1x1
  for j in [0 : n : 4] {
    j.w1 = fill f32 1x4 2.0
    store j.w1 to y[i*n + j; 0, 1] 1x4 if ([j; 0, 1] < n)
    j.z3 = fill f32 1x4 0
    j.t4 = fill bool 1x4 1
    j.w2 = map where j.t4 d j.z3
    store j.w2 to y[i*n + j; 0, 1] 1x4 if ([j; 0, 1] < n)
  }
""",
    ),
    Case(
        "bounds move with the lanes",
        j4,
        point("a = load w[2*j; 0, 0] 1x1 if ([2*j; 0, 0] < n, [i; 0, 0] < 3) fill 5.0"),
        """
  grid i m
  for j in [0 : n : 4] {
    a = load w[2*j; 0, 2] 1x4 if ([2*j; 0, 2] < n, [i; 0, 0] < 3, [j; 0, 1] < n) fill 5.0
    b = map neg a
    store b to y[i*n + j; 0, 1] 1x4 if ([j; 0, 1] < n)
  }
""",
    ),
    Case(
        "a sum is four sums side by side",
        j4,
        FOLD,
        """
  grid i m
  z = fill f32 1x1 0.0
  j.z1 = fill f32 1x4 0
  for j in [0 : n : 4] carry (acc.v = j.z1 -> next) {
    a = load x[i*n + j; 0, 1] 1x4 if ([j; 0, 1] < n)
    j.i2 = iota i64 1x4 [j; 0, 1]
    j.n3 = iota i64 1x1 [n; 0, 0]
    j.b4 = map lt j.i2 j.n3
    j.z5 = fill f32 1x1 0
    j.s6 = map where j.b4 a j.z5
    next = map add acc.v j.s6
  }
  acc = reduce sum 1 acc.v
  store acc to s[i; 0, 0] 1x1
""",
    ),
    Case(
        "a maximum that begins with something",
        lambda p: widen(p, "j", 4, axis=0),
        FOLD.replace("fill f32 1x1 0.0", "load w[0; 0, 0] 1x1").replace("add acc a", "max a acc").replace("n :", "n//4*4 :"),
        """
  grid i m
  z = load w[0; 0, 0] 1x1
  j.z1 = fill f32 4x1 -inf
  for j in [0 : 4*(n//4) : 4] carry (acc.v = j.z1 -> next) {
    a = load x[i*n + j; 1, 0] 4x1
    next = map max acc.v a
  }
  j.p2 = reduce max 0 acc.v
  acc = map max z j.p2
  store acc to s[i; 0, 0] 1x1
""",
    ),
    Case(
        "rows of a product",
        lambda p: widen(p, "i", 4, axis=0),
        PRODUCT.replace("0 : m :", "0 : m//4*4 :"),
        """
  z = fill f32 1x1 0.0
  for i in [0 : 4*(m//4) : 4] free {
    i.w1 = fill f32 4x1 0.0
    for k in [0 : n : 1] carry (acc = i.w1 -> next) {
      a = load x[i*n + k; n, 0] 4x1
      b = load w[k; 0, 0] 1x1
      next = dot a b acc
    }
    store acc to s[i; 1, 0] 4x1
  }
""",
    ),
)
