"""The commands: each file parses the options of the command of its name, calls a verb, and prints."""
