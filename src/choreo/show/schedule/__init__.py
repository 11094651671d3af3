"""Schedules as text, as a still picture and as an animated page."""
