"""Options of the commands: what several share, and how their values are read."""
