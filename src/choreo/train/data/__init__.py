"""What a job is trained on: the bytes of a text, or samples made up for ResNet and DLRM."""
