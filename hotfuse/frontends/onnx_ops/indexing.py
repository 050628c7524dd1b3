"""ONNX importers: indexing."""
