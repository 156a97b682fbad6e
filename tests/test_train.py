"""The training loop: its batches, its choices, what it may look at, and how it stops."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from sptlib import evaluate, tasks, train, transfer
from sptlib.config import GROUPS, FinetuneConfig, ModelConfig, Run
from sptlib.errors import DivergedError
from sptlib.evaluate import accuracy, reconstruction
from sptlib.masking import hide
from sptlib.model import build
from sptlib.seeding import generator
from sptlib.tasks import Split
from sptlib.train import Stage, finetune, pretrain


def data_of(run: Run) -> tasks.TaskData:
    return tasks.load(run.task, run.seed)


def scratch(run: Run, **changes) -> Run:
    return replace(run, pretrain=None, finetune=replace(run.finetune, **changes))


def losses(trained: train.Trained) -> list[float]:
    return [line["loss"] for line in trained.metrics if "loss" in line]


# --- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "size"), [(10, 3), (12, 4), (5, 32), (7, 7)])
def test_every_epoch_visits_every_sequence_once(n, size):
    split = Split(torch.arange(n)[:, None], torch.zeros(n, dtype=torch.int64))
    stage = Stage("finetune", FinetuneConfig(batch_size=size), 0, split, None, None)
    size = min(size, n)
    seen = torch.cat([stage.batch(step).x.flatten() for step in range(3 * n)])
    assert len(seen) == 3 * n * size
    epochs = seen.view(-1, n)
    assert (epochs.sort(1).values == torch.arange(n)).all()
    assert not torch.equal(epochs[0], epochs[1])
    assert torch.equal(stage.batch(2).x, stage.batch(2).x)  # named by the step, not by a state
    other = replace(stage, name="pretrain")
    assert not torch.equal(
        torch.cat([other.batch(s).x.flatten() for s in range(n)]), seen[: n * size]
    )


def test_fresh_batches_are_never_repeated(tiny):
    run = replace(tiny, task=replace(tiny.task, fresh=True, length=60))
    data = data_of(run)
    stage = Stage("finetune", run.finetune, 0, data.train, None, None, sample=data.sample)
    drawn = [row.tobytes() for step in range(20) for row in stage.batch(step).x.numpy()]
    assert len(drawn) == len(set(drawn)) == 20 * 16
    assert losses(finetune(scratch(run), data)) != losses(finetune(scratch(tiny), data_of(tiny)))


# --- what it may look at ------------------------------------------------------------------------


def permuted(data: tasks.TaskData, *splits: str) -> tasks.TaskData:
    """The same inputs with other labels."""
    g = torch.Generator().manual_seed(1)
    return replace(
        data,
        **{
            name: replace(
                getattr(data, name),
                y=torch.randint(data.n_classes, (len(getattr(data, name)),), generator=g),
            )
            for name in splits
        },
    )


def test_labels_never_influence_pretraining(tiny, tiny_image):
    for run in (tiny, tiny_image):
        data = data_of(run)
        other = permuted(data, "unlabelled", "train", "val", "test")
        assert other.fingerprint != data.fingerprint
        a, b = pretrain(run.pretraining, data), pretrain(run.pretraining, other)
        assert a.metrics == b.metrics
        assert a.result == b.result
        weights = b.model.state_dict()
        assert all(torch.equal(v, weights[k]) for k, v in a.model.state_dict().items())
        # while finetuning does read them
        assert losses(finetune(scratch(run), data)) != losses(finetune(scratch(run), other))


def test_the_test_split_influences_nothing_but_its_own_metrics(tiny):
    data = data_of(tiny)
    other = replace(permuted(data, "test"), test=replace(permuted(data, "test").test, x=data.val.x))
    weights = pretrain(tiny.pretraining, data)
    assert weights.metrics == pretrain(tiny.pretraining, other).metrics
    a, b = (finetune(tiny, d, weights.model.state_dict()) for d in (data, other))

    def without_test(lines):
        return [{k: v for k, v in x.items() if not k.startswith("test_")} for x in lines]

    assert without_test(a.metrics) == without_test(b.metrics)
    assert a.metrics != b.metrics
    assert all(torch.equal(v, b.model.state_dict()[k]) for k, v in a.model.state_dict().items())


def test_pretraining_sees_all_inputs_and_finetuning_the_labelled_ones(tiny):
    few = replace(tiny, task=replace(tiny.task, n_labels=8))
    assert (
        pretrain(few.pretraining, data_of(few)).metrics
        == pretrain(tiny.pretraining, data_of(tiny)).metrics
    )
    assert finetune(scratch(few), data_of(few)).result["steps"] == 4  # 4 epochs of one batch of 8


def test_pretraining_on_the_labelled_inputs_only(tiny):
    few = replace(
        tiny,
        task=replace(tiny.task, n_labels=8),
        pretrain=replace(tiny.pretrain, labelled_only=True),
    )
    data = data_of(few)
    trained = pretrain(few.pretraining, data)
    assert trained.result["steps"] == 4
    other = replace(data, unlabelled=replace(data.unlabelled, x=1 - data.unlabelled.x.clamp(max=1)))
    assert trained.metrics == pretrain(few.pretraining, other).metrics


# --- rate, length, choice of the checkpoint -----------------------------------------------------


def test_rate_warms_up_linearly_and_stays(tiny, monkeypatch):
    rates = []

    class Spy(torch.optim.AdamW):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    monkeypatch.setattr(torch.optim, "AdamW", Spy)
    finetune(scratch(tiny, lr=0.01, warmup_steps=4), data_of(tiny))
    assert rates == pytest.approx([0.0025, 0.005, 0.0075] + [0.01] * 9)


def test_clipping_bounds_the_gradient(tiny, monkeypatch):
    norms = []

    class Spy(torch.optim.AdamW):
        def step(self, closure=None):
            grads = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
            norms.append(float(torch.cat([g.flatten() for g in grads]).norm()))
            return super().step(closure)

    monkeypatch.setattr(torch.optim, "AdamW", Spy)
    finetune(scratch(tiny), data_of(tiny))
    assert max(norms) > 0.011
    norms.clear()
    finetune(scratch(tiny, clip=0.01), data_of(tiny))
    assert max(norms) == pytest.approx(0.01, rel=1e-3)


def test_a_short_training_is_the_start_of_a_long_one(tiny):
    short = finetune(scratch(tiny, epochs=2, n_evals=2), data_of(tiny))
    long = finetune(scratch(tiny, epochs=8, n_evals=8), data_of(tiny))
    n = len(short.metrics)
    assert n == 6 + 2
    assert short.metrics == long.metrics[:n]


def test_the_best_checkpoint_is_kept(tiny):
    data = data_of(tiny)
    trained = finetune(scratch(tiny, epochs=20, n_evals=30, lr=0.02), data)
    evals = [x for x in trained.metrics if "best" in x]
    assert [x["step"] for x in evals] == [2 * (i + 1) for i in range(30)]
    first_best = max(evals, key=lambda x: (x["val_accuracy"], -x["step"]))
    result = trained.result
    assert 0 < result["best_step"] == first_best["step"] < result["steps"] == 60
    assert result["test_accuracy"] == first_best["test_accuracy"]
    # the weights that are handed out are those of that evaluation
    assert accuracy(trained.model, data.val) == {
        "accuracy": result["val_accuracy"],
        "loss": result["val_loss"],
    }
    assert accuracy(trained.model, data.test)["loss"] == result["test_loss"]
    assert [x["best"] for x in evals] == [
        x["val_accuracy"] > max([-1, *(y["val_accuracy"] for y in evals[:i])])
        for i, x in enumerate(evals)
    ]
    assert all(("test_accuracy" in x) is x["best"] for x in evals)
    assert result["train_loss"] == pytest.approx(sum(losses(trained)) / 60)


@pytest.mark.parametrize(("criterion", "column", "best"), [
    ("score", "val_accuracy", max), ("loss", "val_loss", min),
])  # fmt: skip
def test_the_criterion_picks_the_pretrained_weights(tiny, criterion, column, best):
    config = replace(tiny.pretrain, epochs=12.0, n_evals=12, criterion=criterion)
    trained = pretrain(replace(tiny, pretrain=config).pretraining, data_of(tiny))
    lines = [line for line in trained.metrics if "best" in line]
    wanted = best(line[column] for line in lines)
    first = next(line for line in lines if line[column] == wanted)
    assert trained.result["best_step"] == first["step"]
    assert trained.result[column] == wanted


def test_trimming_changes_no_number_of_a_padded_task():
    from sptlib import presets

    run = presets.smoke("listops")
    data = data_of(run)
    model = build(run.model, data, 0).eval()
    part = data.test.take(slice(0, 9))
    whole = model.classify(part.x, part.length)
    trimmed = part.take(part.length.argsort()[:4]).trimmed()
    assert trimmed.x.shape[1] < part.x.shape[1]
    expected = whole[part.length.argsort()[:4]]
    assert torch.allclose(model.classify(trimmed.x, trimmed.length), expected, atol=1e-5)


def test_patience_and_stop_at(tiny):
    data = data_of(tiny)
    whole = finetune(scratch(tiny, epochs=20, n_evals=60), data)
    evals = [x for x in whole.metrics if "best" in x]
    best = [x["best"] for x in evals]
    stop = next(i for i in range(len(best)) if i >= 3 and not any(best[i - 2 : i + 1]))
    patient = finetune(scratch(tiny, epochs=20, n_evals=60, patience=3), data)
    assert patient.result["steps"] == evals[stop]["step"] < 60
    assert patient.metrics == whole.metrics[: len(patient.metrics)]
    goal = whole.result["val_accuracy"]
    reached = finetune(scratch(tiny, epochs=20, n_evals=60, stop_at=goal), data)
    assert reached.result["steps"] == reached.result["best_step"] == whole.result["best_step"]


# --- measures -----------------------------------------------------------------------------------


def test_accuracy_does_not_depend_on_the_batches(tiny, monkeypatch):
    data = data_of(tiny)
    model = build(tiny.model, data, 0).eval()
    with torch.no_grad():
        logits = model.classify(data.val.x)
    expected = {
        "accuracy": float((logits.argmax(-1) == data.val.y).float().mean()),
        "loss": float(F.cross_entropy(logits, data.val.y)),
    }
    assert accuracy(model, data.val) == pytest.approx(expected, rel=1e-5)
    monkeypatch.setattr(evaluate, "EVAL_BATCH", 5)
    assert accuracy(model, data.val) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("tokenised", [True, False])
def test_reconstruction_is_measured_at_hidden_positions(tiny_image, tokenised, monkeypatch):
    run = replace(tiny_image, task=replace(tiny_image.task, tokenised=tokenised))
    data = data_of(run)
    model = build(run.model, data, 0).eval()
    hidden = hide(run.pretrain, data.val.x, None, generator(0, "test"))
    with torch.no_grad():
        out = model.reconstruct(data.val.x, hidden)[hidden]
    target = data.val.x[hidden].long()
    if tokenised:
        share = float((out.argmax(-1) == target).float().mean())
        expected = {"loss": float(F.cross_entropy(out, target)), "accuracy": share, "score": share}
    else:
        y = target / 16
        r2 = float(1 - ((y - out) ** 2).mean() / y.var(correction=0))
        expected = {"loss": float((y - out).abs().mean()), "r2": r2, "score": r2}
    assert reconstruction(model, data.val, hidden) == pytest.approx(expected, rel=1e-5)
    monkeypatch.setattr(evaluate, "EVAL_BATCH", 7)
    assert reconstruction(model, data.val, hidden) == pytest.approx(expected, rel=1e-5)


def test_one_hidden_pixel_has_no_r2(tiny_image):
    run = replace(
        tiny_image,
        task=replace(tiny_image.task, n_val=1),
        pretrain=replace(tiny_image.pretrain, mask="token", mask_ratio=1e-6),
    )
    result = pretrain(run.pretraining, data_of(run)).result
    assert result["val_r2"] == 0.0


# --- randomness, dropout, divergence ------------------------------------------------------------


def test_same_run_same_numbers_and_callers_generator_is_left_alone(tiny):
    run = replace(tiny, model=replace(tiny.model, dropout=0.3))
    data = data_of(run)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a = pretrain(run.pretraining, data)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert a.metrics == pretrain(run.pretraining, data).metrics
    without = replace(tiny.pretraining, model=ModelConfig(width=8, n_heads=2))
    assert a.metrics != pretrain(without, data).metrics
    assert a.metrics != pretrain(replace(run.pretraining, seed=1), data).metrics


@pytest.mark.parametrize(("epochs", "step"), [(1e-3, 1), (30, 2)])
def test_divergence_names_the_step_and_keeps_the_log(tiny, epochs, step):
    """One step of this rate breaks the weights: the next loss shows it, or the evaluation."""
    run = replace(
        tiny, pretrain=replace(tiny.pretrain, epochs=epochs, lr=1e38, warmup_steps=0, n_evals=1)
    )
    with pytest.raises(DivergedError, match=f"not finite at step {step};") as caught:
        pretrain(run.pretraining, data_of(run))
    log = caught.value.log
    assert caught.value.step == log[-1]["step"] == step
    assert len([x for x in log if "loss" in x]) == step
    assert math.isfinite(log[0]["loss"])
    last = log[-1]
    assert not math.isfinite(last["loss"] if "loss" in last else last["val_loss"])


# --- how far it went ----------------------------------------------------------------------------


def test_movement_is_measured_from_the_start_of_each_stage(tiny):
    data = data_of(tiny)
    source = pretrain(tiny.pretraining, data)
    short = replace(tiny, finetune=replace(tiny.finetune, n_evals=1))
    trained = finetune(short, data, source.model.state_dict())
    assert trained.result["best_step"] == trained.result["steps"]  # so that the end was kept
    start = build(tiny.model, data, tiny.seed, "finetune")
    transfer.copy_groups(start, source.model.state_dict(), tiny.transfer)
    before, after = (dict(model.named_parameters()) for model in (start, trained.model))
    expected = {f"moved_{k}": v for k, v in transfer.movement(before, after).items()}
    assert {k: v for k, v in trained.result.items() if k.startswith("moved_")} == expected
    assert set(expected) == {f"moved_{group}" for group in GROUPS}
    assert source.result["moved_head"] == 0.0  # reconstruction does not reach it
    assert source.result["moved_qk"] > 0.0


def test_movement_is_of_the_end_not_of_the_best_checkpoint(tiny):
    data = data_of(tiny)
    longer = scratch(tiny, n_evals=12, lr=0.05)
    trained = finetune(longer, data)
    assert trained.result["best_step"] < trained.result["steps"]
    before = dict(build(tiny.model, data, tiny.seed, "finetune").named_parameters())
    kept = transfer.movement(before, dict(trained.model.named_parameters()))
    assert trained.result["moved_mlp"] != kept["mlp"]


def test_progress_reaches_the_end(tiny):
    calls = []
    finetune(scratch(tiny), data_of(tiny), progress=lambda *values: calls.append(values))
    assert [step for step, _, _ in calls] == [4, 8, 12]
    assert all(n == 12 and loss > 0 for _, n, loss in calls)
