"""How plans, and answers to other questions of `choreo plan`, are printed."""
