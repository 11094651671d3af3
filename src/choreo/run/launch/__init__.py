"""Start the ranks of a job on this machine, pass on what they print, and stop them together."""
