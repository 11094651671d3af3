"""How a model is cut over ranks: tensors, sequences, experts, layers and batches, one file each."""
