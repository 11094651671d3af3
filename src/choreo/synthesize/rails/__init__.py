"""Broadcast along rails between servers: the rails, the pieces, and who sends which piece when."""
