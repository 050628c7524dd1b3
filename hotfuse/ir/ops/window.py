"""window operators."""
