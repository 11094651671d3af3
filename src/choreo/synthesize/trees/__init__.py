"""Trees that carry the data: the cheapest one, arc-disjoint ones, packed ones, and how much each carries."""
