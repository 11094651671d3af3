"""How the ranks of a communicator notice failures, and agree on them."""
