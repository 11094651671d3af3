"""What a rank must hold, and what may be with its host instead."""
