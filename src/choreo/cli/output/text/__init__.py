"""The parts of all output: tables, JSON, labels, plots of characters, files."""
