"""The search for the best plans: the space of plans, an estimate of each, and the best in detail."""
