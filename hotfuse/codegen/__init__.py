"""Code generation: groups of a plan become tile programs, and those become native code."""
