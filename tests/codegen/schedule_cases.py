"""What each rewrite of a schedule makes of a small program, as text before and after."""

from __future__ import annotations

from hotfuse.codegen.schedule import (
    coarsen,
    hoist,
    in_parts,
    inline,
    interchange,
    parallelize,
    partition,
    peel,
    reorder,
    split,
    unroll,
)
from hotfuse.codegen.schedule_memory import fetch_for_another, prefetch, stage, stream
from hotfuse.codegen.schedule_values import prune, share
from hotfuse.codegen.tile import Access, Buffer
from hotfuse.ir.dim import ceildiv, symbol
from hotfuse.ir.types import F32
from tests.codegen.rewriting import Case

N, K, TASK = symbol("n"), symbol("k"), symbol("i")

POINT = "a = load x[i*n + j; 0, 0] 1x1   store a to y[i*n + j; 0, 0] 1x1".replace("   ", "\n")
SUM = """
  grid i m
  z = fill f32 1x1 0.0
  for k in [0 : n : 1] carry (acc = z -> next) {
    a = load x[i*n + k; 0, 0] 1x1
    b = load w[k; 0, 0] 1x1
    next = dot a b acc
  }
  store acc to s[i; 0, 0] 1x1
"""

CASES = (
    Case(
        "coarsen",
        lambda p: coarsen(p, "i", 4),
        f"grid i m\n grid j n\n {POINT}",
        f"grid i.t -((-m)//4)\n grid j n\n for i in [4*i.t : min(4*i.t + 4, m) : 1] free {{ \n{POINT}\n }}",
    ),
    Case(
        "coarsen what divides evenly",
        lambda p: coarsen(p, "i", 4),
        "grid i 4*m\n a = load x[0; 0, 0] 1x1 if ([i; 0, 0] < 0)\n store a to y[i; 0, 0] 1x1 if ([i; 0, 0] < m*n)",
        "grid i.t m\n for i in [4*i.t : 4*i.t + 4 : 1] free {\n a = load x[0; 0, 0] 1x1 if ([i; 0, 0] < 0)\n"
        " store a to y[i; 0, 0] 1x1 if ([i; 0, 0] < m*n)\n }",
    ),
    Case(
        "coarsen all of an axis",
        lambda p: coarsen(p, "j", 4),
        "grid i m\n grid j 3\n a = iota i64 1x1 [j; 0, 0]\n b = cast f32 a\n"
        " store b to y[i*n + j; 0, 0] 1x1 if ([j; 0, 0] < n)",
        "grid i m\n for j in [0 : 3 : 1] free {\n a = iota i64 1x1 [j; 0, 0]\n b = cast f32 a\n"
        " store b to y[i*n + j; 0, 0] 1x1 if ([j; 0, 0] < n)\n }",
    ),
    Case("reorder", lambda p: reorder(p, ["j", "i"]), f"grid i m\n grid j n\n {POINT}", f"grid j n\n grid i m\n {POINT}"),
    Case("partition", lambda p: partition(p, "i"), f"grid i m\n grid j n\n {POINT}", f"shared i m\n grid j n\n {POINT}"),
    Case(
        "coarsen what threads share",
        lambda p: coarsen(p, "i", 4),
        f"shared i m\n grid j n\n {POINT}",
        f"shared i.t -((-m)//4)\n grid j n\n for i in [4*i.t : min(4*i.t + 4, m) : 1] free {{ \n{POINT}\n }}",
    ),
    Case(
        "parallelize",
        lambda p: parallelize(p, "j"),
        f"grid i m\n for j in [0 : n : 1] free {{\n {POINT}\n }}",
        f"grid i m\n grid j.t n\n {POINT.replace('j', 'j.t')}",
    ),
    Case(
        "parallelize a loop that may end before it begins",
        lambda p: parallelize(p, "j"),
        "grid i m\n for j in [2 : n : 3] free {\n a = load w[j; 0, 0] 1x1\n store a to y[i*n + j; 0, 0] 1x1\n }",
        "grid i m\n grid j.t -((-max(0, n - 2))//3)\n"
        " a = load w[3*j.t + 2; 0, 0] 1x1\n store a to y[i*n + 3*j.t + 2; 0, 0] 1x1",
    ),
    Case(
        "split",
        lambda p: split(p, "j", 6, "o"),
        f"grid i m\n for j in [0 : n : 2] free {{\n {POINT}\n }}",
        f"grid i m\n for o in [0 : n : 6] free {{\n for j in [o : min(n, o + 6) : 2] free {{\n {POINT}\n }}\n }}",
    ),
    Case(
        "split what divides evenly",
        lambda p: split(p, "j", 4, "o"),
        "grid i m\n for j in [0 : 4*m : 1] { \n a = load t[i; 0, 0] 1x1\n b = cast f32 a\n store b to s[i; 0, 0] 1x1\n }",
        "grid i m\n for o in [0 : 4*m : 4] { \n for j in [o : o + 4 : 1] {\n a = load t[i; 0, 0] 1x1\n b = cast f32 a\n"
        " store b to s[i; 0, 0] 1x1\n }\n }",
    ),
    Case(
        "split what is carried",
        lambda p: split(p, "k", 4, "o"),
        SUM,
        """
  grid i m
  z = fill f32 1x1 0.0
  for o in [0 : n : 4] carry (acc = z -> acc.i) {
    for k in [o : min(n, o + 4) : 1] carry (acc.i = acc -> next) {
      a = load x[i*n + k; 0, 0] 1x1
      b = load w[k; 0, 0] 1x1
      next = dot a b acc.i
    }
  }
  store acc to s[i; 0, 0] 1x1
""",
    ),
    Case(
        "interchange",
        lambda p: interchange(p, "i", "j"),
        f"for i in [0 : m : 1] free {{\n for j in [0 : n : 1] free {{\n {POINT}\n }}\n }}",
        f"for j in [0 : n : 1] free {{\n for i in [0 : m : 1] free {{\n {POINT}\n }}\n }}",
    ),
    Case(
        "peel",
        lambda p: peel(p, "j", 4, "rest"),
        f"grid i m\n for j in [0 : n : 1] free {{\n {POINT}\n }}",
        f"grid i m\n for j in [0 : 4*(n//4) : 1] free {{\n {POINT}\n }}\n"
        "for rest in [4*(n//4) : n : 1] free {\n a.r = load x[i*n + rest; 0, 0] 1x1\n store a.r to y[i*n + rest; 0, 0] 1x1\n }",
    ),
    Case(
        "peel a loop that may end before it begins",
        lambda p: peel(p, "j", 4, "rest"),
        "grid i m\n for j in [3 : n : 1] {\n a = load w[j; 0, 0] 1x1\n store a to y[i*n + j; 0, 0] 1x1\n }",
        "grid i m\n for j in [3 : 4*(max(0, n - 3)//4) + 3 : 1] {\n"
        " a = load w[j; 0, 0] 1x1\n store a to y[i*n + j; 0, 0] 1x1\n }\n"
        " for rest in [4*(max(0, n - 3)//4) + 3 : n : 1] {\n"
        " a.r = load w[rest; 0, 0] 1x1\n store a.r to y[i*n + rest; 0, 0] 1x1\n }",
    ),
    Case(
        "peel what is carried",
        lambda p: peel(p, "k", 4, "rest"),
        SUM,
        """
  grid i m
  z = fill f32 1x1 0.0
  for k in [0 : 4*(n//4) : 1] carry (acc.w = z -> next) {
    a = load x[i*n + k; 0, 0] 1x1
    b = load w[k; 0, 0] 1x1
    next = dot a b acc.w
  }
  for rest in [4*(n//4) : n : 1] carry (acc = acc.w -> next.r) {
    a.r = load x[i*n + rest; 0, 0] 1x1
    b.r = load w[rest; 0, 0] 1x1
    next.r = dot a.r b.r acc
  }
  store acc to s[i; 0, 0] 1x1
""",
    ),
    Case(
        "peel a loop shorter than a run",
        lambda p: peel(p, "k", 8, "rest"),
        SUM.replace("0 : n :", "0 : 3 :").replace("x[i*n + k", "w[k + 1"),
        """
  grid i m
  z = fill f32 1x1 0.0
  for rest in [0 : 3 : 1] carry (acc = z -> next.r) {
    a.r = load w[rest + 1; 0, 0] 1x1
    b.r = load w[rest; 0, 0] 1x1
    next.r = dot a.r b.r acc
  }
  store acc to s[i; 0, 0] 1x1
""",
    ),
    Case(
        "peel a loop that is surely shorter than a run",
        lambda p: peel(p, "j", 4, "rest"),
        "grid i m\n for k in [0 : 3 : 2] {\n for j in [k : 3 : 1] {\n a = load w[j; 0, 0] 1x1\n"
        " store a to s[i; 0, 0] 1x1\n }\n }",
        "grid i m\n for k in [0 : 3 : 2] {\n for rest in [k : 3 : 1] {\n a.r = load w[rest; 0, 0] 1x1\n"
        " store a.r to s[i; 0, 0] 1x1\n }\n }",
    ),
    Case(
        "peel what has whole runs only",
        lambda p: peel(p, "k", 4, "rest"),
        SUM.replace("0 : n :", "0 : n//4*4 :"),
        SUM.replace("0 : n :", "0 : n//4*4 :"),
    ),
    Case("unroll", lambda p: unroll(p, "k", 3), SUM, SUM.replace("next) {", "next) unroll 3 {")),
    Case(
        "inline",
        lambda p: inline(p, "k"),
        SUM.replace("0 : n :", "i : i + 1 :").replace("x[i*n + k", "w[k + 1"),
        """
  grid i m
  z = fill f32 1x1 0.0
  a = load w[i + 1; 0, 0] 1x1
  b = load w[i; 0, 0] 1x1
  next = dot a b z
  store next to s[i; 0, 0] 1x1
""",
    ),
    Case(
        "inline blocks that change places",
        lambda p: inline(p, "k"),
        "grid i m\n p = fill f32 1x1 1.0\n q = fill f32 1x1 2.0\n for k in [0 : 3 : 4] carry (a = p -> b, b = q -> a) {\n }\n"
        " c = map sub a b\n store c to s[i; 0, 0] 1x1",
        "grid i m\n p = fill f32 1x1 1.0\n q = fill f32 1x1 2.0\n c = map sub q p\n store c to s[i; 0, 0] 1x1",
    ),
    Case(
        "hoist",
        lambda p: hoist(p, "j"),
        """
  grid i m
  for j in [0 : 3 : 1] {
    r = index t[i; 0, 0] 1x1 limit 4
    a = load w[r; 0, 0] 1x1
    b = load w[j; 0, 0] 1x1
    c = map add a a
    d = map add b c
    store d to y[i*n; 0, 0] 1x1 if ([j; 0, 0] < n)
  }
""",
        """
  grid i m
  r = index t[i; 0, 0] 1x1 limit 4
  a = load w[r; 0, 0] 1x1
  c = map add a a
  for j in [0 : 3 : 1] {
    b = load w[j; 0, 0] 1x1
    d = map add b c
    store d to y[i*n; 0, 0] 1x1 if ([j; 0, 0] < n)
  }
""",
    ),
    Case(
        "hoist nothing that reads memory out of a loop that may have no turn",
        lambda p: hoist(p, "j"),
        """
  grid i m
  for j in [0 : n : 1] {
    r = index t[i; 0, 0] 1x1 limit n
    a = load x[i*n + r; 0, 0] 1x1
    b = fill f32 1x1 2.0
    c = map mul a b
    store c to y[i*n + j; 0, 0] 1x1
  }
""",
        """
  grid i m
  b = fill f32 1x1 2.0
  for j in [0 : n : 1] {
    r = index t[i; 0, 0] 1x1 limit n
    a = load x[i*n + r; 0, 0] 1x1
    c = map mul a b
    store c to y[i*n + j; 0, 0] 1x1
  }
""",
    ),
    Case(
        "hoist nothing that the loop itself stores",
        lambda p: hoist(p, "j"),
        """
  scratch q f32[4]
  grid i m
  o = fill f32 1x1 1.0
  store o to q[0; 0, 0] 1x1
  for j in [0 : 3 : 1] {
    a = load q[0; 0, 0] 1x1
    b = map add a o
    for l in [0 : 1 : 1] {
      store b to q[0; 0, 0] 1x1
    }
  }
  c = load q[0; 0, 0] 1x1
  store c to s[i; 0, 0] 1x1
""",
        """
  scratch q f32[4]
  grid i m
  o = fill f32 1x1 1.0
  store o to q[0; 0, 0] 1x1
  for j in [0 : 3 : 1] {
    a = load q[0; 0, 0] 1x1
    b = map add a o
    for l in [0 : 1 : 1] {
      store b to q[0; 0, 0] 1x1
    }
  }
  c = load q[0; 0, 0] 1x1
  store c to s[i; 0, 0] 1x1
""",
    ),
    Case(
        "in parts",
        lambda p: in_parts(p, "k", 8),
        SUM,
        """
  grid i m
  z = fill f32 1x1 0.0
  for k.p in [0 : n : 8] carry (acc = z -> acc.s) {
    for k in [k.p : min(k.p + 8, n) : 1] carry (acc.p = z -> next) {
      a = load x[i*n + k; 0, 0] 1x1
      b = load w[k; 0, 0] 1x1
      next = dot a b acc.p
    }
    acc.s = map add acc acc.p
  }
  store acc to s[i; 0, 0] 1x1
""",
    ),
    Case(
        "prefetch",
        lambda p: prefetch(p, "k", Access("w", K + 1000, 0, 1, (1, 4)), level=1),
        SUM,
        SUM.replace("next) {", "next) {\n prefetch w[k + 1000; 0, 1] 1x4 level 1\n"),
    ),
    Case(
        "fetch for another",
        lambda p: fetch_for_another(p, "k", Buffer("w", F32, N + 8), TASK * N + K, 4, 2, level=1),
        SUM,
        SUM.replace("next) {", "next) {\n prefetch w[i*n + k; 0, 1] 1x1 level 1\n prefetch w[i*n + k + 4; 0, 1] 1x1 level 1\n"),
    ),
    Case(
        "stream",
        lambda p: stream(p, "y"),
        f"grid i m\n for j in [0 : n : 1] free {{\n {POINT}\n }}",
        f"grid i m\n for j in [0 : n : 1] free {{\n {POINT} stream\n }}",
    ),
    Case(
        "stage",
        lambda p: stage(p, "i", "w", "pack", 2 * ceildiv(N, 2)),
        """
  grid i.t -((-m)//4)
  z = fill f32 1x1 0.0
  for i in [4*i.t : min(4*i.t + 4, m) : 1] free {
    for k in [0 : n : 2] carry (acc = z -> next) {
      a = load x[i*n + k; 0, 1] 1x2 if ([k; 0, 1] < n)
      b = load w[k; 1, 0] 2x1 if ([k; 1, 0] < n) fill 1.0
      next = dot a b acc
    }
    store acc to s[i; 0, 0] 1x1
  }
""",
        """
  scratch pack f32[-2*((-n)//2)]
  grid i.t -((-m)//4)
  z = fill f32 1x1 0.0
  for k.c in [0 : n : 2] {
    b.c = load w[k.c; 1, 0] 2x1 if ([k.c; 1, 0] < n) fill 1.0
    store b.c to pack[2*(k.c//2); 1, 1] 2x1
  }
  for i in [4*i.t : min(4*i.t + 4, m) : 1] free {
    for k in [0 : n : 2] carry (acc = z -> next) {
      a = load x[i*n + k; 0, 1] 1x2 if ([k; 0, 1] < n)
      b = load pack[2*(k//2); 1, 1] 2x1
      next = dot a b acc
    }
    store acc to s[i; 0, 0] 1x1
  }
""",
    ),
    Case(
        "share",
        share,
        """
  grid i m
  a = load w[0; 0, 0] 1x1
  b = load w[0; 0, 0] 1x1
  c = map add a b
  for j in [0 : n : 1] free {
    d = map add a a
    e = map mul c d
    store e to y[i*n + j; 0, 0] 1x1
  }
""",
        """
  grid i m
  a = load w[0; 0, 0] 1x1
  c = map add a a
  for j in [0 : n : 1] free {
    e = map mul c c
    store e to y[i*n + j; 0, 0] 1x1
  }
""",
    ),
    Case(
        "share what a loop hands on",
        share,
        "grid i m\n z = fill f32 1x1 0.0\n a = load w[0; 0, 0] 1x1\n"
        " for j in [0 : n : 1] carry (c = z -> b) {\n b = load w[0; 0, 0] 1x1\n }\n store c to s[i; 0, 0] 1x1",
        "grid i m\n z = fill f32 1x1 0.0\n a = load w[0; 0, 0] 1x1\n"
        " for j in [0 : n : 1] carry (c = z -> a) {\n }\n store c to s[i; 0, 0] 1x1",
    ),
    Case(
        "share an index",
        share,
        "grid i m\n p = index t[i; 0, 0] 1x1 limit 8\n q = index t[i; 0, 0] 1x1 limit 8\n a = load w[p; 0, 0] 1x1\n"
        " for j in [0 : n : 1] {\n b = load w[q + j; 0, 0] 1x1 if ([q + j; 0, 0] < n)\n c = map add a b\n"
        " store c to y[i*n + j; 0, 0] 1x1\n }",
        "grid i m\n p = index t[i; 0, 0] 1x1 limit 8\n a = load w[p; 0, 0] 1x1\n"
        " for j in [0 : n : 1] {\n b = load w[p + j; 0, 0] 1x1 if ([p + j; 0, 0] < n)\n c = map add a b\n"
        " store c to y[i*n + j; 0, 0] 1x1\n }",
    ),
    Case(
        "share no zeros of different sign",
        share,
        "grid i m\n a = fill f32 1x1 0.0\n b = fill f32 1x1 -0.0\n c = fill f32 1x1 1.0\n d = map div c a\n e = map div c b\n"
        " f = map sub d e\n store f to s[i; 0, 0] 1x1",
        "grid i m\n a = fill f32 1x1 0.0\n b = fill f32 1x1 -0.0\n c = fill f32 1x1 1.0\n d = map div c a\n e = map div c b\n"
        " f = map sub d e\n store f to s[i; 0, 0] 1x1",
    ),
    Case(
        "share nothing that is stored in between",
        share,
        "scratch q f32[4]\n grid i m\n a = fill f32 1x1 1.0\n store a to q[0; 0, 0] 1x1\n b = load q[0; 0, 0] 1x1\n"
        " c = map add a b\n"
        " store c to q[0; 0, 0] 1x1\n d = load q[0; 0, 0] 1x1\n e = map add b d\n store e to s[i; 0, 0] 1x1",
        "scratch q f32[4]\n grid i m\n a = fill f32 1x1 1.0\n store a to q[0; 0, 0] 1x1\n b = load q[0; 0, 0] 1x1\n"
        " c = map add a b\n"
        " store c to q[0; 0, 0] 1x1\n d = load q[0; 0, 0] 1x1\n e = map add b d\n store e to s[i; 0, 0] 1x1",
    ),
    Case(
        "prune",
        prune,
        """
  grid i m
  z = fill f32 1x1 0.0
  o = fill f32 1x1 1.0
  r = index t[i; 0, 0] 1x1 limit 8
  for k in [0 : n : 1] carry (acc = z -> next) {
    a = load x[i*n + k; 0, 0] 1x1
    u = map exp a
    v = map neg u
    next = map add acc a
  }
  e = map exp acc
  store acc to s[i; 0, 0] 1x1
""",
        """
  grid i m
  z = fill f32 1x1 0.0
  r = index t[i; 0, 0] 1x1 limit 8
  for k in [0 : n : 1] carry (acc = z -> next) {
    a = load x[i*n + k; 0, 0] 1x1
    next = map add acc a
  }
  store acc to s[i; 0, 0] 1x1
""",
    ),
)
