"""The ways of making a schedule, one file each, behind one interface: `Problem` in, `Candidate`s out."""
