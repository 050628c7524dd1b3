"""Fusion: which nodes become one kernel."""
