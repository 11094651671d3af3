"""What a rank must hold in memory, and what may be offloaded to its host."""
