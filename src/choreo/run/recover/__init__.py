"""How a communicator goes on without lost ranks, and with new ones."""
