"""Connections between hosts: addresses, handshakes, and frames that cannot be forged."""
