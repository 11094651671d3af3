"""The packet simulator's inner loops in Python: what the compiled core does, slowly and in the open, bit for bit.

It runs where there is no compiler, and the tests hold the compiled loops to it. `core/module.c` has the model in short.
The files here have the names and the order of those in `core`.
"""
