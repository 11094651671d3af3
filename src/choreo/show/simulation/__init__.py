"""Simulations as a page and as a timeline."""
