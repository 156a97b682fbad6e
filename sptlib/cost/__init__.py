"""What experiments cost before they are run: floating point operations, memory, hours."""

from sptlib.cost.table import COLUMNS, Cases, estimate, plan

__all__ = ["COLUMNS", "Cases", "estimate", "plan"]
