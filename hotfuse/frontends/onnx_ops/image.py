"""ONNX importers: image."""
