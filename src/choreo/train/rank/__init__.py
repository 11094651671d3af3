"""What one rank of a training run does: its part of the model, step after step, timed and counted."""
