"""Training programs: the figures in which they differ, what they do by default, and their own options for a plan."""

from choreo.plan.software.software import FILE, Software, Style, get_software, list_software

__all__ = ["FILE", "Software", "Style", "get_software", "list_software"]
