"""Watching: it changes nothing, sees the weights it says it sees, and survives interruptions."""

import json
from dataclasses import replace
from itertools import product

import pytest
import torch
from click.testing import CliRunner
from torch.optim.optimizer import register_optimizer_step_post_hook

from sptlib import export, presets, recheck, tasks, train, watch
from sptlib.analysis.attention import uniform_proximity
from sptlib.cli import main
from sptlib.config import Run, key
from sptlib.errors import DivergedError, Stopped, StoreError
from sptlib.execute import Where, compute
from sptlib.model import build
from sptlib.store import FILES, SNAPSHOTS, Store
from sptlib.tasks import ImageConfig
from sptlib.train import Trained, finetune, pretrain
from sptlib.transfer import copy_groups, movement

STAGES = ("pretrain", "finetune")
#: what a look adds to a result
NAMES = {
    *watch.EVERYWHERE, *watch.FIRST_LAYER, "uniform",
    *(f"{loss}_{name}" for loss in ("label", "reconstruction") for name in watch.FORCES),
}  # fmt: skip


def watched(run: Run, times: int = 5, **changes) -> Run:
    """Both stages; of 12 steps, five looks are at 2, 5, 7, 10 and 12."""
    stages = {name: getattr(run, name) for name in STAGES if getattr(run, name)}
    changed = {name: replace(stage, watch=times, **changes) for name, stage in stages.items()}
    return replace(run, **changed)


def looks(log: list[dict]) -> list[dict]:
    return [line for line in log if "attention" in line]


def both(run: Run) -> tuple[Trained, Trained]:
    """Pretraining and finetuning, without a store."""
    data = tasks.load(run.task, run.seed)
    before = pretrain(run.pretraining, data)
    return before, finetune(run, data, before.model.state_dict())


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --- it changes nothing -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{}, {"clip": 0.5, "patience": 1}, {"batch_size": 7, "weight_decay": 0.1}],
    ids=str,
)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_watched_training_is_the_same_training(tiny, changes, dropout):
    model = replace(tiny.model, dropout=dropout, head_norm="batch")  # which keeps statistics
    run = replace(tiny, model=model, freeze=("vo",))
    for plain, seen in zip(both(watched(run, 0, **changes)), both(watched(run, **changes)),
                           strict=True):  # fmt: skip
        assert looks(plain.metrics) == []
        assert plain.snapshots == {}
        assert [x for x in seen.metrics if "attention" not in x] == plain.metrics  # to the last bit
        # labels do not use the head of reconstruction, which a watched model brings along
        unused = "reconstructor" if "test_accuracy" in plain.result else "none"
        assert same(
            *(
                {k: v for k, v in t.model.state_dict().items() if not k.startswith(unused)}
                for t in (plain, seen)
            )
        )
        added = {prefix + name for prefix in ("", "start_", "end_") for name in NAMES}
        assert seen.result.keys() - plain.result.keys() == added
        assert {k: v for k, v in seen.result.items() if k not in added} == plain.result
        assert [p.requires_grad for p in plain.model.parameters()] == [
            p.requires_grad for p in seen.model.parameters()
        ]


@pytest.mark.parametrize("transfer", [("all",), ("qkvo",)])
def test_a_wholly_pretrained_model_keeps_its_reconstruction_head(tiny, transfer):
    pretrained, run = both(watched(replace(tiny, transfer=transfer)))
    head = {k: v for k, v in pretrained.model.state_dict().items() if "reconstructor" in k}
    kept = {k: v for k, v in run.model.state_dict().items() if "reconstructor" in k}
    assert same(head, kept) == (transfer == ("all",))


def test_the_callers_random_numbers_are_left_alone(tiny):
    model = build(tiny.model, data := tasks.load(tiny.task, 0), 0).eval()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert watch.measure(model, data) == watch.measure(model, data)
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.training


# --- it sees the weights of its steps -----------------------------------------------------------


@pytest.fixture
def recorded(monkeypatch):
    """The weights of every training, by step, as the optimiser leaves them."""
    models, weights = [], []
    monkeypatch.setattr(train, "build", lambda *a: models.append(build(*a)) or models[-1])

    def after_step(*_):
        if len(weights) < len(models):
            weights.append({})
        now = {k: v.clone() for k, v in models[-1].state_dict().items()}
        weights[-1][len(weights[-1]) + 1] = now

    handle = register_optimizer_step_post_hook(after_step)
    yield weights
    handle.remove()


@pytest.mark.parametrize(("times", "steps"), [
    (1, [0, 12]), (3, [0, 4, 8, 12]), (5, [0, 2, 5, 7, 10, 12]), (100, list(range(13))),
])  # fmt: skip
def test_snapshots_are_the_weights_at_their_steps(tiny, recorded, times, steps):
    run = watched(replace(tiny, transfer=("qk", "embed")), times)
    data = tasks.load(run.task, run.seed)
    trainings = both(run)
    starts = [build(run.model, data, run.seed, stage) for stage in STAGES]
    copy_groups(starts[1], trainings[0].model.state_dict(), run.transfer)
    for stage, start, trained, weights in zip(STAGES, starts, trainings, recorded, strict=True):
        assert len(weights) == 12
        assert [x["step"] for x in looks(trained.metrics)] == list(trained.snapshots) == steps
        assert {x["stage"] for x in looks(trained.metrics)} == {stage}
        expected = {0: start.state_dict(), **weights}
        for step in steps:
            assert same(trained.snapshots[step], expected[step]), step
            # what was logged is what is measured of these weights, and how far they are
            model = build(run.model, data, 99)
            model.load_state_dict(trained.snapshots[step])
            (line,) = (x for x in looks(trained.metrics) if x["step"] == step)
            found = watch.measure(model.eval(), data)
            assert {k: line[k] for k in found} == found
            assert line["moved"] == movement(dict(start.named_parameters()), expected[step])
        last = {k.removeprefix("moved_"): v for k, v in trained.result.items() if "moved_" in k}
        assert looks(trained.metrics)[-1]["moved"] == last
    assert not same(trainings[1].snapshots[0], trainings[1].snapshots[12])


def test_a_result_has_the_start_the_end_and_the_best_weights(tiny):
    run = watched(tiny, 2, n_evals=12)
    data = tasks.load(run.task, run.seed)
    for trained in both(run):
        first, *_, last = looks(trained.metrics)
        best = watch.measure(trained.model, data)
        for prefix, line in (("start_", first), ("end_", last), ("", best)):
            for name, value in watch.summary(line).items():
                assert trained.result[prefix + name] == value
        assert trained.result["start_entropy"] != trained.result["end_entropy"]
    assert trained.result["best_step"] < 12, "the best weights are not the last ones"
    assert trained.result["entropy"] != trained.result["end_entropy"]


def test_a_training_that_stops_early_is_watched_at_its_end(tiny):
    run = watched(tiny, 2)
    run = replace(run, finetune=replace(run.finetune, stop_at=0.01))
    _, trained = both(run)
    assert trained.result["steps"] == 4  # the first evaluation
    assert list(trained.snapshots) == [x["step"] for x in looks(trained.metrics)] == [0, 4]
    assert trained.result["end_entropy"] == watch.summary(looks(trained.metrics)[-1])["entropy"]
    assert same(trained.snapshots[4], trained.model.state_dict())
    plain = replace(run, finetune=replace(run.finetune, watch=0))
    assert both(plain)[1].snapshots == {}


def test_the_same_step_is_watched_once(tiny):
    """Stopped at a step at which a look was due anyway."""
    run = watched(tiny, 3)
    run = replace(run, finetune=replace(run.finetune, stop_at=0.01))
    _, trained = both(run)
    assert [x["step"] for x in looks(trained.metrics)] == [0, 4]


# --- interrupted --------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for whatever ends a process without any clean-up of ours."""


def contents(store: Store, run: Run) -> list[bytes]:
    names = [name for name in (*FILES, SNAPSHOTS) if name != "environment.json"]
    return [store.get(spec).read(name) for spec in (run, run.pretraining) for name in names]


@pytest.mark.parametrize("every", [3, 5, 7])  # at, between, and beside the looks
@pytest.mark.parametrize("stage", STAGES)
def test_interrupted_it_ends_in_the_same_bytes(tiny, tmp_path, where, stage, every):
    run = watched(replace(tiny, model=replace(tiny.model, dropout=0.2)), 4)
    undisturbed, store = Store(tmp_path / "a"), Store(tmp_path / "b")
    compute(run, undisturbed, where)

    def kill(name, step, n_steps, loss):
        if name == stage and step >= 8:
            raise Killed

    with pytest.raises(Killed):
        compute(run, store, Where(device="cpu", checkpoint_steps=every, progress=kill))
    assert list(store.path.glob(".work/*/checkpoint.safetensors"))
    compute(run, store, where)
    assert contents(store, run) == contents(undisturbed, run)


@pytest.mark.parametrize("at", range(1, 12))
def test_stopped_anywhere_it_ends_in_the_same_bytes(tiny, tmp_path, where, at):
    run = watched(tiny, 4)
    undisturbed, store = Store(tmp_path / "a"), Store(tmp_path / "b")
    compute(run, undisturbed, where)
    asked = []
    stop = Where(device="cpu", stop=lambda: asked.append(0) or len(asked) % at == 0)
    for _ in range(30):
        try:
            compute(run, store, stop)
            break
        except Stopped:
            continue
    assert len(asked) == 24, "no step was computed twice"
    assert contents(store, run) == contents(undisturbed, run)


# --- stored, sent and compared ------------------------------------------------------------------


def test_snapshots_are_stored_and_travel(tiny, store, tmp_path, where):
    entry = compute(watched(tiny), store, where)
    found = entry.snapshots()
    assert list(found) == [0, 2, 5, 7, 10, 12]
    trained = both(watched(tiny))[1]
    assert all(same(found[step], trained.snapshots[step]) for step in found)
    assert sorted(path.name for path in entry.path.iterdir()) == sorted(
        [*FILES, SNAPSHOTS, "manifest.json"]
    )
    there = Store(tmp_path / "there").unpack(entry.key, entry.pack())
    there.verify()
    assert there.manifest == entry.manifest
    assert all(same(there.snapshots()[step], found[step]) for step in found)
    assert key(watched(tiny)) != key(tiny)


def test_what_was_not_watched_keeps_no_weights(tiny, store, where):
    entry = compute(tiny, store, where)
    with pytest.raises(StoreError, match="keeps no weights along the way: its watch is 0"):
        entry.snapshots()
    assert SNAPSHOTS not in entry.pack()


def test_verify_reads_the_snapshots(tiny, store, where):
    entry = compute(watched(tiny), store, where)

    def verify(*more):
        return CliRunner().invoke(main, ["runs", "verify", *more, "--store", str(store.path)])

    assert verify().exit_code == 0
    file = entry.path / SNAPSHOTS
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    done = verify()
    assert done.exit_code == 1
    assert f"{SNAPSHOTS} is damaged" in done.output
    with pytest.raises(StoreError, match="is damaged"):
        store.get(watched(tiny)).snapshots()


def test_a_recomputed_watched_run_is_identical(tiny, store, where):
    run = watched(tiny, 2)
    entry = compute(run, store, where)

    def again():
        known = {e.key: e for e in store.entries()}
        found = recheck.recompute(known, [known[key(run)]], workers=1)
        return {c.key: c for c in found}

    assert {c.outcome for c in again().values()} == {"identical"}
    lines = json.loads(json.dumps(entry.metrics))
    lines[0]["attention"]["entropy"][0][0] += 1e-4
    store.put(run, metrics=lines, result=entry.result, model=entry.model(),
              snapshots=entry.snapshots(), environment=entry.environment)  # fmt: skip
    found = again()
    assert found[key(run)].outcome == "different"
    assert "attention at step 0 of finetune" in found[key(run)].text
    assert found[key(run.pretraining)].outcome == "identical"


def test_thinned_logs_keep_every_look(tiny):
    log = [{"stage": "finetune", "step": s, "loss": 1.0} for s in range(1, 1001)]
    seen = [{"stage": "finetune", "step": s, "attention": {}} for s in range(0, 1001, 4)]
    tested = [{"stage": "finetune", "step": s, "best": True} for s in (500, 1000)]
    thin = export.thinned(sorted([*log, *tested, *seen], key=lambda line: line["step"]))
    assert looks(thin) == seen
    assert [x for x in thin if "best" in x] == tested
    assert len([x for x in thin if "loss" in x]) == export.POINTS
    assert [x["step"] for x in thin] == sorted(x["step"] for x in thin)
    short = both(watched(tiny))[1].metrics
    assert looks(export.thinned(short)) == looks(short)


# --- the numbers --------------------------------------------------------------------------------


def test_a_summary_is_a_mean_over_heads_and_some_layers():
    two = [[1.0, 3.0], [7.0, 13.0]]  # layers, heads
    forces = {"force": 0.25, "noise": 0.5, "cosine": 0.75, "columns": 1.0, "lags": [0.0]}
    line = {
        "attention": {**dict.fromkeys((*watch.EVERYWHERE, *watch.FIRST_LAYER), two), "profile": []},
        "uniform": 0.125,
        "label": forces,
        "reconstruction": {**forces, "force": -2.0},
    }
    found = watch.summary(line)
    assert found.keys() == NAMES
    assert {found[name] for name in watch.EVERYWHERE} == {6.0}
    assert {found[name] for name in watch.FIRST_LAYER} == {2.0}
    assert found["uniform"] == 0.125
    assert (found["label_force"], found["reconstruction_force"]) == (0.25, -2.0)
    assert [found[f"label_{name}"] for name in watch.FORCES] == [0.25, 0.5, 0.75, 1.0]
    assert watch.summary(line, "end_") == {f"end_{name}": value for name, value in found.items()}


@pytest.mark.parametrize("room", [2**28, 12 * 12 * 2 * 5, 1])
@pytest.mark.parametrize("n", [2, 3, 4, 33, 63, 64, 65, 511, 512, 5000])
def test_batches_are_of_equal_size_at_least_two_and_never_too_many(tiny, monkeypatch, n, room):
    """Long sequences have smaller batches; here five maps of two heads and 12 positions fit."""
    monkeypatch.setattr(watch, "WEIGHTS", room)
    most = {2**28: watch.BATCH_SIZE, 1: 1}.get(room, 5)
    pieces = watch._slices(n, build(tiny.model, tasks.load(tiny.task, 0), 0))
    assert 2 <= len(pieces) <= watch.BATCHES
    assert {piece.stop - piece.start for piece in pieces} == {min(most, n // 2)}
    places = [i for piece in pieces for i in range(piece.start, piece.stop)]
    assert places == list(range(len(places)))
    assert places[-1] < n


def test_numbers_have_five_digits_and_nothing_but_numbers():
    found = watch._rounded({"a": [1.23456789, [1e-7 / 3]], "b": 0.0, "c": -123456.7})
    assert found == {"a": [1.2346, [3.3333e-08]], "b": 0.0, "c": -123460.0}


def pixels() -> Run:
    run = presets.smoke("image")
    return replace(run, task=replace(run.task, tokenised=False))


KINDS = {**{recipe: presets.smoke(recipe) for recipe in presets.RECIPES}, "pixels": pixels()}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_data_can_be_watched(name, store, where):
    run = watched(KINDS[name], 2, epochs=0.5)
    run = replace(run, model=replace(run.model, n_layers=2, n_heads=2))
    entry = compute(run, store, where)
    for found in (entry, store.get(run.pretraining)):
        result = found.result
        for prefix in ("", "start_", "end_"):
            of = {name: result[prefix + name] for name in NAMES}
            assert all(0 < of[name] < 1 for name in ("uniform", "proximity"))
            assert of["entropy"] > 0
            assert all(0 <= of[f"{x}_columns"] <= 1 for x in ("label", "reconstruction"))
            assert all(-1 <= of[f"{x}_cosine"] <= 1 for x in ("label", "reconstruction"))
            assert of["label_noise"] > 0
            assert of["reconstruction_noise"] > 0
        for line in looks(found.metrics):
            assert [len(layer) for layer in line["attention"]["proximity"]] == [2, 2]
            assert len(line["label"]["lags"]) == len(line["reconstruction"]["lags"]) == 21
        json.dumps(found.metrics, allow_nan=False)


def by_hand(data: tasks.TaskData) -> float:
    """The share of near keys, counted pair by pair."""
    test = data.test.take(slice(0, watch.SEQUENCES)).sequences()
    lengths = [data.max_len] * len(test) if test.length is None else test.length.tolist()
    side = data.side

    def is_near(i: int, j: int) -> bool:
        if not side:
            return abs(i - j) <= 2
        return max(abs(i // side - j // side), abs(i % side - j % side)) <= 1

    shares = {
        n: sum(is_near(i, j) for i, j in product(range(n), range(n))) / n**2 for n in set(lengths)
    }
    return sum(shares[n] for n in lengths) / len(lengths)


@pytest.mark.parametrize("name", KINDS)
def test_uniform_attention_has_the_proximity_that_is_called_uniform(name):
    run = KINDS[name]
    data = tasks.load(run.task, 0)
    model = build(replace(run.model, init="uniform"), data, 0).eval()
    found = watch.summary(watch.measure(model, data))
    assert found["uniform"] == pytest.approx(by_hand(data), rel=1e-4)
    assert found["proximity"] == pytest.approx(found["uniform"], rel=1e-4)


def test_images_are_near_in_the_plane():
    data = tasks.load(ImageConfig(n_train=20, n_val=10, n_test=10), 0)
    assert data.side == 8
    model = build(KINDS["image"].model, data, 0).eval()
    uniform = watch.measure(model, data)["uniform"]
    assert uniform == pytest.approx(uniform_proximity(64, 1, 8), rel=1e-4)
    assert uniform != pytest.approx(uniform_proximity(64, 2), rel=0.1)
    flat = watch.measure(model, replace(data, side=0))["uniform"]
    assert flat == pytest.approx(uniform_proximity(64, 2), rel=1e-4)
    assert (watch.near(8), watch.near(0)) == (1, 2)


def test_a_diverging_training_says_so_when_it_is_watched(tiny):
    changes = {"lr": 1e30, "n_evals": 1, "warmup_steps": 0}
    run = watched(replace(tiny, pretrain=None), times=12, **changes)
    with pytest.raises(DivergedError):
        finetune(run, tasks.load(run.task, run.seed))
