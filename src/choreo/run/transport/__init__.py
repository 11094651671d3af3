"""Authenticated TCP connections between hosts: addresses, handshakes and sealed frames."""
