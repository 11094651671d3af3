"""How results are printed: tables and sentences for people, JSON for scripts."""
