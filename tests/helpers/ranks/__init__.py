"""Ranks of tests: forked or started, told what to do, killed and heard out."""
