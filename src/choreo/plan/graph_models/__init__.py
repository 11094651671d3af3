"""A step of a model that is one graph, ResNet-50 or DLRM: data parallelism with sharded tables."""
