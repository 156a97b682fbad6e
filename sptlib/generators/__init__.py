"""Generators of the synthetic tasks of the Long Range Arena, vectorised."""
