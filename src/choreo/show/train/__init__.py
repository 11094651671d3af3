"""A training run on a page: figures, and the step as it was measured beside the step as it was predicted."""
