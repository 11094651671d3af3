"""The packet simulator's inner loops in Python: what the compiled core does, slow and readable, bit for bit.

It is the fallback without a compiler, and the oracle for the compiled loops in the tests. `core/module.c` summarizes
the model. The files here have the names and the order of those in `core`.
"""
