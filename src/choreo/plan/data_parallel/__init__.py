"""What data parallelism adds to a step: gradients summed, parameters gathered, and how much of that is hidden."""
