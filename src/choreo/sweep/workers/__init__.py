"""Who computes the cases of a sweep: processes of this machine, or a Ray cluster."""
