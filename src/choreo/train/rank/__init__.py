"""One rank of a training run: its part of the model, step after step, timed and counted."""
