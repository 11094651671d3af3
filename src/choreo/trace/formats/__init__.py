"""Readers and writers of trace formats, one module per format."""
