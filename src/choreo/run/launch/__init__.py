"""`choreo run`: start the ranks of a job on this host, relay their output, and stop them all when one fails."""
