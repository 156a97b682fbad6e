"""Readers, writers and checks of the official file formats, one module each."""
