"""Compile a schedule for one rank, and run it over shared memory and sockets."""
