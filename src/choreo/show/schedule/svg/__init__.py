"""The still picture of a schedule, in SVG."""
