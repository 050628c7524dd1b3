"""Read by a model of the guard tests; a test changes it."""

SCALE = 1.0
