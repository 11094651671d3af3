"""`python -m choreo`."""

from choreo.cli import main

main()
