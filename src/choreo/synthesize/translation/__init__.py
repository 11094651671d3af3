"""What one device does, translated to all others: trees grown in time, and their messages put in time."""
