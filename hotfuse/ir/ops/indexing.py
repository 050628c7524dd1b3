"""indexing operators."""
