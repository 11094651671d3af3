"""The suite itself: its workers, what tests cost, and torch when it is needed."""
