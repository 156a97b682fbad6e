"""Watched trainings as films: mean attention maps at every look, for the explorer."""

from collections.abc import Sequence

import pandas as pd
import torch

from sptlib.analysis.attention import column_share, mean_map
from sptlib.config import Pretraining
from sptlib.experiments.base import Result, losses
from sptlib.explorer import MOST_POSITIONS, Film
from sptlib.model import build
from sptlib.store import Entry, Store
from sptlib.tasks import load

#: most cells of all maps of a film, which keeps the explorer's page small
MOST_CELLS = 550_000


def thinned(frames: list, cells: int) -> list:
    """Evenly spread frames, the first and the last among them, as many as `MOST_CELLS` allows.

    Args:
        frames: of one film.
        cells: of the maps of one frame, all layers and heads.
    """
    n = min(len(frames), max(2, MOST_CELLS // cells))
    keep = {round(i * (len(frames) - 1) / max(1, n - 1)) for i in range(n)}
    return [frame for i, frame in enumerate(frames) if i in keep]


def film(title: str, entries: Sequence[Entry], n: int = 100, looks: int = 0) -> Film:
    """The mean attention maps of one or two stages, look after look.

    Args:
        title: of the film.
        entries: watched trainings of one model, e.g. a pretraining and the Run that starts from it.
        n: test sequences over which attention is averaged; they have nothing hidden.
        looks: only the last so many of each training; 0 = all.

    Raises:
        StoreError: if one of them was not watched.
    """
    steps, stages, maps, notes = [], [], [], []
    for entry in entries:
        spec = entry.spec
        stage, name = "finetune", "labels"
        if isinstance(spec, Pretraining):
            stage, name = "pretrain", "reconstruction"
        data = load(spec.task, spec.seed)
        test = data.test.take(slice(0, n)).sequences().trimmed()
        model = build(spec.model, data, spec.seed, stage).eval()
        curve = losses(entry, stage).set_index("step")["loss"]
        for step, weights in list(entry.snapshots().items())[-looks:]:
            model.load_state_dict(weights)
            steps.append(step)
            stages.append(name)
            maps.append(mean_map(model, test.x, None, test.length))
            notes.append(f"loss {curve.asof(step):.2f}" if step else "start")
    return Film(title=title, steps=steps, stages=stages, maps=torch.stack(maps), notes=notes)


def columns(results: Sequence[Result], task: str, n: int = 100) -> pd.DataFrame:
    """The last look of every Run: how sharp attention is, and how much of it is for all alike.

    Args:
        results: of `sptlib.experiments.attention`.
        task: the row.
        n: test sequences.

    Returns:
        A row per Run: ``arm``, ``seed``, ``entropy`` and ``columns`` (`column_share` of the mean
        map, mean over layers and heads).
    """
    rows = []
    for result in results:
        if result.labels["task"] == task:
            last = film("", [result.entry], n, looks=1).maps[-1]
            share = float(column_share(last).mean())
            found = {"entropy": result.entry.result["end_entropy"], "columns": share}
            rows.append({"arm": result.labels["arm"], "seed": result.entry.spec.seed, **found})
    return pd.DataFrame(rows).sort_values(["arm", "seed"])


def films(results: Sequence[Result], store: Store, task: str, seed: int = 0) -> list[Film]:
    """Training from scratch beside SPT, from the Runs of `sptlib.experiments.attention`.

    Args:
        results: of that experiment.
        store: where the pretraining is.
        task: the row.
        seed: which.
    """
    found = []
    for result in results:
        run = result.entry.spec
        if result.labels["task"] == task and run.seed == seed:
            before = [store.get(run.pretraining)] if run.pretrain else []
            title = "self-pretraining, then labels" if before else "from scratch, labels only"
            whole = film(title, [*before, result.entry])
            layers, heads, T = whole.maps.shape[1:4]
            cells = layers * heads * min(T, MOST_POSITIONS) ** 2
            keep = thinned(list(range(len(whole.steps))), cells)
            found.append(
                Film(
                    title=title,
                    steps=[whole.steps[i] for i in keep],
                    stages=[whole.stages[i] for i in keep],
                    maps=whole.maps[keep],
                    notes=[whole.notes[i] for i in keep],
                )
            )
    return found
