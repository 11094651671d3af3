"""Plans of star-shaped messages, one file for each kind of collective."""
