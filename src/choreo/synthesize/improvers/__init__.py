"""Improvers of finished schedules: each takes the best ones so far, and yields better ones."""
