"""ONNX importers: normalization."""
