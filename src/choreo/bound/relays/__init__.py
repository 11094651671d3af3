"""What it costs that devices relay data between a server and a network, message by message."""
