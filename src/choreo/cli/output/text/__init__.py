"""What all output is made of: tables, JSON, labels, plots of characters, files."""
