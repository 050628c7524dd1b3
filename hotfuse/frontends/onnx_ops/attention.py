"""ONNX importers: attention."""
