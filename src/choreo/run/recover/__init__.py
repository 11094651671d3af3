"""Failures: notice them, agree on them, and go on with fewer ranks or new ones."""
