"""What serves the page: the server, and the processes that work for it."""

from choreo.explore.server.server import MOST_BODY, Server, web_files

__all__ = ["MOST_BODY", "Server", "web_files"]
