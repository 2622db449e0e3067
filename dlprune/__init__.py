"""Prune image classifiers in ONNX files with the operators of MVTec HALCON."""

__version__ = "0.1.0"
