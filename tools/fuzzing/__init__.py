"""What `tools/fuzz.py` is made of: how files are mutated, and what reads them."""
