"""Watched trainings as films."""

from dataclasses import replace

import pytest
import torch

from sptlib import films, presets
from sptlib.analysis.attention import column_share, mean_map, proximity
from sptlib.errors import StoreError
from sptlib.execute import compute
from sptlib.experiments import attention, base
from sptlib.explorer import Explorer, Film
from sptlib.model import build
from sptlib.store import Store
from sptlib.tasks import load

ROW = "Neighbor +1 / +3"


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("films"))
    cases = attention.cases("smoke", 2, task=ROW, looks=3)
    entries = [compute(case.run, store) for case in cases]
    return store, base.paired(cases, entries)


def test_a_film_shows_every_look(watched):
    store, results = watched
    scratch, spt = films.films(results, store, ROW, seed=1)
    n = results[0].entry.spec.n_steps
    assert scratch.steps == [round(i * n / 3) for i in range(4)]
    assert set(scratch.stages) == {"labels"}
    assert spt.stages == ["reconstruction"] * 4 + ["labels"] * 4
    assert scratch.notes[0] == "start"
    assert scratch.notes[-1].startswith("loss ")
    T = results[0].entry.spec.task.length
    assert scratch.maps.shape == (4, 1, 1, T, T)


def test_the_frames_are_the_maps_of_the_kept_weights(watched):
    _, results = watched
    entry = next(r.entry for r in results if r.labels["arm"] == "SPT")
    data = load(entry.spec.task, entry.spec.seed)
    model = build(entry.spec.model, data, 12345).eval()  # whatever its start is
    film = films.film("", [entry])
    for frame, weights in zip(film.maps, entry.snapshots().values(), strict=True):
        model.load_state_dict(weights)
        assert torch.equal(frame, mean_map(model, data.test.x[:100]))
    # what was measured on the way agrees with the film, but for the number of sequences
    lines = [line for line in entry.metrics if "attention" in line]
    many = films.film("", [entry], n=200)
    for line, frame in zip(lines, many.maps, strict=True):
        assert line["attention"]["proximity"][0][0] == pytest.approx(
            float(proximity(frame[0, 0])), rel=1e-3
        )


def test_the_last_looks_only(watched):
    _, results = watched
    entry = results[0].entry
    assert torch.equal(films.film("", [entry], looks=1).maps[0], films.film("", [entry]).maps[-1])


def test_columns_have_a_row_per_run(watched):
    _, results = watched
    found = films.columns(results, ROW)
    assert found[["arm", "seed"]].values.tolist() == [
        ["SPT", 0], ["SPT", 1], ["scratch", 0], ["scratch", 1]
    ]  # fmt: skip
    assert found["columns"].between(0, 1).all()
    scratch = next(r for r in results if r.labels["arm"] == "scratch" and r.entry.spec.seed == 1)
    assert found["entropy"].iloc[-1] == scratch.entry.result["end_entropy"]
    share = column_share(films.film("", [scratch.entry]).maps[-1]).mean()
    assert found["columns"].iloc[-1] == pytest.approx(float(share))


def test_what_was_not_watched_is_no_film(tmp_path):
    run = presets.get("smoke", "neighbor")
    entry = compute(replace(run, pretrain=None), Store(tmp_path))
    with pytest.raises(StoreError, match="its watch is 0"):
        films.film("", [entry])


def test_films_are_thinned_until_they_fit():
    kept = films.thinned(list(range(63)), 8 * 64 * 64)  # two layers of four heads, on digits
    assert (kept[0], kept[-1]) == (0, 62)
    assert len(kept) * 8 * 64 * 64 <= films.MOST_CELLS
    assert len(kept) > 15
    assert films.thinned([1, 2, 3], 10) == [1, 2, 3]
    assert films.thinned(list(range(9)), 10**9) == [0, 8]


@pytest.mark.parametrize(("layers", "heads", "T"), [(2, 4, 64), (2, 1, 100), (1, 8, 128)])
def test_noisy_films_of_common_sizes_fit_a_page(layers, heads, T):
    looks = [list(range(n)) for n in (21, 42)]
    g = torch.Generator().manual_seed(0)
    many = []
    for frames in looks:
        keep = films.thinned(frames, layers * heads * T * T)
        scores = torch.randn(len(keep), layers, heads, T, T, generator=g)
        names = ["labels"] * len(keep)
        many.append(Film("a film", keep, names, scores.softmax(-1), [""] * len(keep)))
    assert len(Explorer(many, label="common").html()) < 1_500_000
