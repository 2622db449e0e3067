"""Preparing a classifier for its target: other number formats, made by ONNX Runtime's own quantizer."""
