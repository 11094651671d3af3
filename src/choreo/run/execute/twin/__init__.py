"""The executor in Python: the oracle of the compiled one, and the fallback where there is no compiler."""
