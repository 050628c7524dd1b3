"""scan operators."""
