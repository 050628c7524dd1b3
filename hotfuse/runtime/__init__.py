"""Running plans: engines, binding to shapes, memory, sessions."""
