"""What data parallelism adds to a step: summing gradients, gathering parameters, and how much of it is hidden."""
