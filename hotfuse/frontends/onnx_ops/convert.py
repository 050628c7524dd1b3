"""ONNX importers: convert."""
