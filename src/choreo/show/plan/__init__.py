"""Planned steps as a page and as a timeline."""
