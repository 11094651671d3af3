"""The workers of a sweep: processes of this machine, or a Ray cluster."""
