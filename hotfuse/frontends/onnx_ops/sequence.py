"""ONNX importers: sequence."""
