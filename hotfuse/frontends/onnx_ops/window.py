"""ONNX importers: window."""
