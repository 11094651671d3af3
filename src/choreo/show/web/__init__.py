"""The files of the pages, and how they are put together."""
