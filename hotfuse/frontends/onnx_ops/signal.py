"""ONNX importers: signal."""
