"""Training data: the bytes of a text, or synthetic samples for ResNet and DLRM."""
