"""Training classifiers in ONNX Runtime: forward pass, loss, backward pass and solver step as one graph."""
