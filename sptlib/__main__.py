"""`python -m sptlib` is the command `sptlib`."""

from sptlib.cli import main

main()
