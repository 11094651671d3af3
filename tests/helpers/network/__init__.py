"""Hosts, cables and strangers for tests between machines."""
