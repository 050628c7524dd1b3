"""ONNX importers: recurrent."""
