"""How a communicator continues without lost ranks, and with new ones."""
