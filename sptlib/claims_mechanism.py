"""The questions behind the claims on mechanism and theory (C9–C12, C14), from their tables.

The thresholds were fixed before the study was run; what was looked at before are seeds 100 and 101.
"""

import pandas as pd

from sptlib.analysis import decisions
from sptlib.analysis.decisions import Part
from sptlib.experiments import theory
from sptlib.experiments.ablation import NEIGHBOR, SCRATCH, SPT

#: attention is near if it has this many times the mass of uniform attention on near tokens
NEAR = 2.0
#: share of the position–position scores' variance that depends on distance alone
TOEPLITZ = 0.5
#: labels change attention by less than this share of its mass, if they do not find the structure
STILL = 0.05
#: finetuning keeps the structure if this share of it is left
KEPT = 0.8
#: share of the label gradient's square that is blind to proximity
BLIND = 0.8
#: cosine between the force of reconstruction and the direction towards near tokens
COSINE = 0.1


def _rows(table: pd.DataFrame, arm: str):
    return table[table["arm"] == arm].groupby("task", sort=False)


def near(table: pd.DataFrame) -> list[Part]:
    """C9: after SPT, near tokens have at least `NEAR` times the attention that uniform gives."""
    return [
        decisions.above(
            rows["start_proximity"] / rows["start_uniform"], NEAR, str(name),
            "attention on near tokens after SPT, over that of uniform attention",
        )
        for name, rows in _rows(table, SPT)
    ]  # fmt: skip


def relative(table: pd.DataFrame) -> list[Part]:
    """C10: after SPT, position–position scores are a function of distance, more than at random."""
    found = []
    for name, rows in _rows(table, SPT):
        before = table[(table["arm"] == SCRATCH) & (table["task"] == name)].set_index("seed")
        after = rows.set_index("seed")["start_toeplitz"]
        change = (after - before["start_toeplitz"].reindex(after.index)).to_numpy()
        level = decisions.above(
            after.to_numpy(), TOEPLITZ, str(name), "share that depends on distance alone"
        )
        rise = decisions.above(change, 0.0, str(name), "its rise over the random start", "+.2f")
        found.append(decisions.both(level, rise, "distance alone, and more than at the start"))
    return found


def still(table: pd.DataFrame) -> list[Part]:
    """C11: labels alone leave attention on near tokens where it was, within `STILL`."""
    return [
        decisions.near(
            rows["end_proximity"] - rows["start_proximity"], 0.0, STILL, str(name),
            "change of attention on near tokens under labels",
        )
        for name, rows in _rows(table, SCRATCH)
        if name in NEIGHBOR
    ]  # fmt: skip


def kept(table: pd.DataFrame) -> list[Part]:
    """C14: after the last label step, at least `KEPT` of SPT's attention on near tokens is left."""
    return [
        decisions.above(
            rows["end_proximity"] / rows["start_proximity"], KEPT, str(name),
            "attention on near tokens after labels, over that after SPT",
        )
        for name, rows in _rows(table, SPT)
    ]  # fmt: skip


def blind(table: pd.DataFrame) -> list[Part]:
    """C12: labels are blind to proximity at uniform attention; reconstruction pushes towards it."""
    found = []
    for name, rows in theory.forces(table).groupby("task", sort=False):

        def of(loss: str, moment: str, value: str, rows=rows):
            here = (rows["loss"] == loss) & (rows["moment"] == moment)
            return rows.loc[here, value].to_numpy()

        labels = decisions.above(
            of("label", theory.START, "blind"), BLIND, str(name),
            "share of the label gradient that is blind to proximity",
        )  # fmt: skip
        pull = decisions.above(
            of("reconstruction", theory.FITTED_BY_RECONSTRUCTION, "cosine"), COSINE, str(name),
            "cosine of reconstruction's force with proximity, the rest being fitted",
        )  # fmt: skip
        found.append(decisions.both(labels, pull, "labels blind, reconstruction not"))
    return found
