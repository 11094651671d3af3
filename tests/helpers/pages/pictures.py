"""What a picture says."""

from __future__ import annotations

from xml.etree import ElementTree

__all__ = ["SVG", "words_of"]

SVG = "{http://www.w3.org/2000/svg}"


def words_of(picture: str) -> list[str]:
    """Its texts, in the order they are drawn."""
    return [node.text or "" for node in ElementTree.fromstring(picture).iter(f"{SVG}text")]
