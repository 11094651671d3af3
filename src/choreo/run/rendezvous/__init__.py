"""Rendezvous: the processes of a job find and authenticate each other."""
