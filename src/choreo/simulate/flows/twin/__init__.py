"""The simulator's inner loops in Python: what the compiled core does, slow and readable.

It is the fallback without a compiler, and the oracle for the compiled loops in the tests. There is no pass without
contention here: everything is simulated with shared links, which gives the same result.
"""
