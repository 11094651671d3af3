"""The requests of each view of the page: its fields, and the answer."""
