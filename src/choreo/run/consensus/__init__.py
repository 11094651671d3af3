"""How the ranks of a communicator detect failures, and agree on them."""
