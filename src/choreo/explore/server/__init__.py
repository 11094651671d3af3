"""The server of the page, and its worker processes."""

from choreo.explore.server.server import MOST_BODY, Server, web_files

__all__ = ["MOST_BODY", "Server", "web_files"]
