"""ONNX importers: reduction."""
