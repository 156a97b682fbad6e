"""The one training loop; `pretrain` and `finetune` are two calls of it.

AdamW, linear warm-up, then a constant rate, as in Amos et al. (2024): with a constant rate, the
first k steps of a long training are the training of k steps, so that one Run can be read at several
lengths.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from sptlib import engine as engines
from sptlib import processes, watch
from sptlib.checkpoint import Checkpoint
from sptlib.config import Pretraining, Run, expand_groups
from sptlib.engine import Engine
from sptlib.errors import ConfigError, DivergedError, Stopped, StoreError
from sptlib.evaluate import accuracy, reconstruction
from sptlib.masking import hide, reconstruction_loss
from sptlib.model import Transformer, build
from sptlib.seeding import derive_seed, generator
from sptlib.stage import Stage, State, Trained
from sptlib.tasks import Split, TaskData
from sptlib.transfer import copy_groups, copy_head, freeze_groups, movement


def fit(
    model: Transformer,
    stage: Stage,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int, int, float], None] | None = None,
    stop: Callable[[], bool] | None = None,
    accumulate: int = 1,
) -> tuple[State, dict[int, dict[str, Tensor]]]:
    """Train a model in place and leave it with its best weights.

    Args:
        model: on the device of the stage's data.
        stage: what to train.
        checkpoint: where to save now and then, and where to resume from.
        progress: called as ``progress(step, n_steps, loss)`` at evaluations and every 50 steps.
        stop: asked after every step, with several processes about once a second; not without a
            checkpoint.
        accumulate: pieces, per process, in which a batch is computed.

    Returns:
        What happened, and the weights at the steps at which it was watched.

    Raises:
        DivergedError: at a loss that is NaN or infinite, naming the step.
        Stopped: when ``stop`` said so; then, too, the checkpoint is up to date.
        ConfigError: if batches cannot be divided between processes and pieces.
        StoreError: if the checkpoint cannot be written, or not be read by all processes.
    """
    config, n, device = stage.config, len(stage.split), stage.split.x.device
    n_steps = config.n_steps(n)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    team = processes.team(device)
    batch_norm = model.standardise is not None and stage.unused != "classifier"
    team.together(
        lambda: engines.check(stage.name, config, n, batch_norm, device, accumulate, team)
    )
    engine = engines.start(config, model, accumulate, team)
    trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        [p for _, p in trainable], lr=config.lr, weight_decay=config.weight_decay, fused=True
    )
    eval_steps = {round((i + 1) * n_steps / config.n_evals) for i in range(config.n_evals)} - {0}
    state, best, seen = State(), {}, {}
    if checkpoint is not None:
        found = team.together(
            lambda: checkpoint.load(State, model, optimizer, trainable, report=team.main)
        )
        if len(set(team.gather(found and found[0].step))) > 1:
            raise processes.shared(
                StoreError(f"not every process reads the same checkpoint {checkpoint.path}")
            )
        state, best, seen = found or (state, best, seen)
    started = time.monotonic() - state.seconds
    engine.prepare(model, optimizer, getattr(model, stage.unused))
    dropout = model.blocks[0].dropout.p > 0
    pending: list[Tensor] = []  # losses since the last look: reading each at once would stall a GPU

    def flush() -> None:
        losses = engine.total(pending) if pending else []
        first = state.step - len(losses) + 1
        pending.clear()
        for step, loss in enumerate(losses, first):
            state.log.append({"stage": stage.name, "step": step, "loss": loss})
            if not math.isfinite(loss):
                raise DivergedError(stage.name, step, state.log)
        if losses and progress is not None:
            progress(state.step, n_steps, losses[-1])

    def save() -> None:
        flush()
        state.seconds = time.monotonic() - started
        team.decide(lambda: checkpoint.save(state, model, optimizer, trainable, best, seen))

    def look() -> None:
        flush()
        if state.step not in seen:
            seen[state.step] = {k: v.cpu() for k, v in _copy(model).items()}
            model.eval()
            moved = movement(start, dict(model.named_parameters()))
            try:
                found = stage.watch(model)
            except FloatingPointError as error:
                raise DivergedError(stage.name, state.step, state.log) from error
            line = {"stage": stage.name, "step": state.step, **found, "moved": moved}
            state.log.append(line)
            model.train()

    model.train()
    if state.step in stage.watch_steps:  # resumed elsewhere, there is nothing to look at
        look()
    while state.step < n_steps and not state.stopped:
        for group in optimizer.param_groups:
            group["lr"] = config.lr * min(1.0, (state.step + 1) / max(1, config.warmup_steps))
        optimizer.zero_grad(set_to_none=True)
        with torch.random.fork_rng(devices=[], enabled=dropout):
            pending.append(_gradients(engine, stage, state.step, dropout))
        if config.clip:
            engine.clip([p for _, p in trainable], config.clip)
        engine.optimizer.step()
        state.step += 1
        if state.step in eval_steps:
            flush()
            best = _evaluate(model, engine, stage, state) or best
        if state.step in stage.watch_steps or (state.stopped and config.watch):
            look()
        elif len(pending) == 50:
            flush()
        if checkpoint is not None:
            now = state.step in eval_steps or checkpoint.due_by_steps(state.step)
            due, asked = engine.wishes(state.step, now, checkpoint.due, stop or (lambda: False))
            asked &= state.step < n_steps and not state.stopped
            if due or asked:
                save()
            if asked:
                raise processes.shared(Stopped(stage.name, state.step, n_steps))
    flush()
    state.seconds = time.monotonic() - started
    state.moved = movement(start, dict(model.named_parameters()))
    model.load_state_dict(best)
    model.eval()
    return state, seen


def _copy(model: Transformer) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def _gradients(engine: Engine, stage: Stage, step: int, dropout: bool) -> Tensor:
    """Forward and backward pass of a step; returns this process's part of the batch's loss."""
    batch = stage.batch(step)
    losses = []
    for number, part, hidden, share in engine.pieces(batch, stage.hidden(batch, step)):
        if dropout:
            piece = () if engine.n_pieces == 1 else ("piece", number, engine.n_pieces)
            torch.manual_seed(derive_seed(stage.seed, stage.name, "dropout", step, *piece))
        with engine.accumulate():
            loss = stage.loss(engine.model, part, hidden)
            engine.backward(loss, share)
        losses.append(loss.detach() if engine.n_pieces == 1 else loss.detach() * share)
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def _evaluate(
    model: Transformer, engine: Engine, stage: Stage, state: State
) -> dict[str, Tensor] | None:
    """Evaluate, log, and decide on stopping; returns a copy of the weights if they are the best."""
    model.eval()
    with torch.no_grad():
        values = stage.evaluate(engine.evaluated)
        score = values.pop("score")
        is_best = score > state.best_score
        if is_best:
            values |= stage.on_best(engine.evaluated)
    model.train()
    state.log.append({"stage": stage.name, "step": state.step, **values, "best": is_best})
    if not all(map(math.isfinite, (score, *values.values()))):  # the last step broke the weights
        raise DivergedError(stage.name, state.step, state.log)
    state.since_best = 0 if is_best else state.since_best + 1
    if is_best:
        state.best_score, state.best_step = score, state.step
    patience = stage.config.patience
    state.stopped = bool(patience and state.since_best >= patience) or (
        stage.stop_at is not None and score >= stage.stop_at
    )
    return _copy(model) if is_best else None


def pretrain(
    spec: Pretraining,
    data: TaskData,
    checkpoint: Checkpoint | None = None,
    progress: Callable | None = None,
    stop: Callable[[], bool] | None = None,
    accumulate: int = 1,
) -> Trained:
    """Masked reconstruction of all training inputs; labels are never read.

    The last four arguments, and what raises, are those of `fit`.
    """
    config = spec.pretrain
    model = build(spec.model, data, spec.seed, "pretrain").to(data.train.x.device)
    val = data.val.sequences()
    hidden_val = hide(config, val.x, val.length, generator(spec.seed, "val", "mask"))
    team = processes.team(val.x.device)

    def hidden(batch: Split, step: int) -> Tensor:
        g = generator(spec.seed, "pretrain", "mask", step)
        return hide(config, batch.x, batch.length, g)

    def loss(model: Transformer, part: Split, hidden: Tensor) -> Tensor:
        output = model.reconstruct(part.x, hidden, part.length)
        return reconstruction_loss(output, part.x, hidden, model.scale)

    def evaluate(model: Transformer) -> dict[str, float]:
        values = reconstruction(model, val, hidden_val, team)
        score = values.pop("score")
        if config.criterion == "loss":
            score = -values["loss"]
        return {"score": score, **{f"val_{k}": v for k, v in values.items()}}

    stage = Stage(
        name="pretrain",
        config=config,
        seed=spec.seed,
        loss=loss,
        hidden=hidden,
        split=data.train.sequences() if config.labelled_only else data.unlabelled,
        evaluate=evaluate,
        sample=_fresh(spec.task, data),
        unused="classifier",
        watch=lambda model: watch.measure(model, data),
    )
    return _trained(model, stage, checkpoint, progress, stop, accumulate)


def finetune(
    run: Run,
    data: TaskData,
    pretrained: dict[str, Tensor] | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Callable | None = None,
    stop: Callable[[], bool] | None = None,
    accumulate: int = 1,
) -> Trained:
    """Transfer, freeze, train from labels; the test split is only looked at, never chosen by.

    The last four arguments, and what raises, are those of `fit`.
    """
    model = build(run.model, data, run.seed, "finetune")
    if run.pretrain is not None and pretrained is None:
        raise ConfigError(
            "this Run starts from a pretraining, but no pretrained weights were given"
        )
    report = copy_groups(model, pretrained or {}, run.transfer, run.transfer_share)
    whole = run.transfer == expand_groups(("all",)) and run.transfer_share == 1
    if run.finetune.watch and whole:
        # labels do not use it, but where reconstruction would push this model is asked with it
        copy_head(model, pretrained or {})
    report["frozen"] = freeze_groups(model, run.freeze)
    model = model.to(data.train.x.device)
    team = processes.team(data.train.x.device)

    def loss(model: Transformer, part: Split, hidden: None) -> Tensor:
        return F.cross_entropy(model.classify(part.x, part.length), part.y)

    def evaluate(model: Transformer) -> dict[str, float]:
        values = accuracy(model, data.val, team)
        return {"score": values["accuracy"], **{f"val_{k}": v for k, v in values.items()}}

    def on_best(model: Transformer) -> dict[str, float]:
        return {f"test_{k}": v for k, v in accuracy(model, data.test, team).items()}

    stage = Stage(
        name="finetune",
        config=run.finetune,
        seed=run.seed,
        split=data.train,
        loss=loss,
        evaluate=evaluate,
        on_best=on_best,
        stop_at=run.finetune.stop_at,
        sample=_fresh(run.task, data),
        watch=lambda model: watch.measure(model, data),
    )
    trained = _trained(model, stage, checkpoint, progress, stop, accumulate)
    return replace(trained, result={**trained.result, **report})


def _trained(model: Transformer, stage: Stage, *how) -> Trained:
    """`fit`, and what it leaves behind; a watched training has the measures of its best weights."""
    state, seen = fit(model, stage, *how)
    result = _summary(state)
    if stage.config.watch:
        looks = [line for line in state.log if "attention" in line]
        result |= watch.summary(looks[0], "start_") | watch.summary(looks[-1], "end_")
        result |= watch.summary(stage.watch(model))
    return Trained(model, state.log, result, state.seconds, seen)


def _fresh(task, data: TaskData) -> Callable | None:
    return data.sample if task.fresh else None


def _summary(state: State) -> dict:
    """Steps taken, the best evaluation; of the end, the training loss (mean of ≤ 100 steps) and how
    far each parameter group has moved."""
    losses = [line["loss"] for line in state.log if "loss" in line]
    best = next(x for x in state.log if x["step"] == state.best_step and "best" in x)
    values = {k: v for k, v in best.items() if k not in ("stage", "step", "best")}
    return {
        "steps": state.step,
        "best_step": state.best_step,
        **values,
        "train_loss": sum(losses[-100:]) / len(losses[-100:]),
        **{f"moved_{group}": value for group, value in state.moved.items()},
    }
