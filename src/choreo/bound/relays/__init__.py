"""Bounds that count the cost of relaying data between a server and a network, message by message."""
