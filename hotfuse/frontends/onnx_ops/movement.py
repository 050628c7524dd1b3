"""ONNX importers: movement."""
