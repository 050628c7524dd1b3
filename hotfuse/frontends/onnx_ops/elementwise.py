"""ONNX importers: elementwise."""
