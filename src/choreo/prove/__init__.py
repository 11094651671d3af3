"""Does a schedule do what its collective promises? If not, where does it first go wrong?"""

from choreo.prove.prove import Proof, prove

__all__ = ["Proof", "prove"]
