"""The parameter groups of a model, by which weights are transferred and frozen."""

from sptlib.errors import unknown

#: parameter groups that can be transferred or frozen, and the names that stand for several
GROUPS = ("embed", "qk", "vo", "mlp", "norm", "head")
ALIASES = {"qkvo": ("qk", "vo"), "all": ("embed", "qk", "vo", "mlp", "norm")}


def expand_groups(names: tuple[str, ...]) -> tuple[str, ...]:
    """Group names with the aliases spelled out, each once, in the order of `GROUPS`."""
    chosen: set[str] = set()
    for name in names:
        if name not in GROUPS and name not in ALIASES:
            raise unknown("parameter group", name, (*GROUPS, *ALIASES))
        chosen.update(ALIASES.get(name, (name,)))
    return tuple(g for g in GROUPS if g in chosen)
