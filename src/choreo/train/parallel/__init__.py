"""How a model is cut over ranks: tensors, sequences, experts, layers and batches, a file each."""
