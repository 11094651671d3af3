"""What each view of the page asks for: its fields, and the answer."""
