"""The dataflow graph of a model under a plan: operators, tensors, and the collectives between them."""
