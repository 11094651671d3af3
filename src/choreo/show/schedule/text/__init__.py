"""A schedule as text for a terminal."""
