"""Benchmarks: each engine in a process of its own, rounds interleaved, medians compared."""
