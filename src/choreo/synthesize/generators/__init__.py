"""The generators, one file each, behind one interface: a `Problem` in, `Candidate`s out."""
