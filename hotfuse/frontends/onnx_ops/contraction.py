"""ONNX importers: contraction."""
