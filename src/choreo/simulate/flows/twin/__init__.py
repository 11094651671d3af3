"""The simulator's inner loops in Python: what the compiled core does, slowly and in the open.

It runs where there is no compiler, and the tests hold the compiled loops to it. There is no alone pass here: everything
is simulated with links shared, which comes to the same.
"""
