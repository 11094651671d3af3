"""Recovery: a communicator continues without failed ranks (shrink), and with new ones (grow)."""
