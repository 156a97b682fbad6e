"""The one training loop; `pretrain` and `finetune` are two calls of it.

AdamW, linear warm-up, then a constant rate, as in Amos et al. (2024): with a constant rate, the
first k steps of a long training are the training of k steps, so that one Run can be read at several
lengths.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from sptlib.checkpoint import Checkpoint
from sptlib.config import Pretraining, Run, TrainConfig
from sptlib.errors import ConfigError, DivergedError
from sptlib.masking import hide, reconstruction_loss
from sptlib.model import Transformer, build
from sptlib.seeding import derive_seed, generator
from sptlib.tasks import Split, TaskData
from sptlib.transfer import copy_groups, freeze_groups

EVAL_BATCH = 500  # sequences per forward pass without gradients, and
EVAL_POSITIONS = 2**19  # positions: fewer sequences if they are long


@dataclass(frozen=True)
class Trained:
    """What a training leaves behind.

    Attributes:
        model: with the weights of the best evaluation.
        metrics: one line per step (``stage, step, loss``) and per evaluation (``stage, step,
            val_loss, ..., best``).
        result: the summary that the store keeps.
    """

    model: Transformer
    metrics: list[dict]
    result: dict


@dataclass
class State:
    """Everything that a resumed training needs besides model and optimiser."""

    step: int = 0
    best_score: float = float("-inf")
    best_step: int = 0
    since_best: int = 0
    stopped: bool = False
    log: list[dict] = field(default_factory=list)


@dataclass(frozen=True)
class Stage:
    """One stage of training, as the loop sees it.

    Attributes:
        name: "pretrain" or "finetune".
        config: length, rate, batch.
        seed: of batch order, masks and dropout.
        split: the training sequences.
        loss: ``loss(model, batch, step)`` -> scalar.
        evaluate: ``evaluate(model)`` -> metrics with a ``score``, the higher the better.
        on_best: ``on_best(model)`` -> further metrics, computed whenever the score is a new best.
        stop_at: stop at this score.
        sample: draws fresh batches instead of taking them from ``split``.
    """

    name: str
    config: TrainConfig
    seed: int
    split: Split
    loss: Callable[[Transformer, Split, int], Tensor]
    evaluate: Callable[[Transformer], dict[str, float]]
    on_best: Callable[[Transformer], dict[str, float]] = lambda model: {}
    stop_at: float | None = None
    sample: Callable[[int, torch.Generator], Split] | None = None

    def batch(self, step: int) -> Split:
        """The batch of a step (from 0): consecutive pieces of an endless row of shuffled epochs."""
        n = len(self.split)
        size = min(self.config.batch_size, n)
        if self.sample is not None:
            fresh = self.sample(size, generator(self.seed, self.name, "fresh", step))
            return fresh.to(self.split.x.device).trimmed()
        epoch, offset = divmod(step * size, n)
        index = _order(self.seed, self.name, n, epoch)[offset : offset + size]
        if len(index) < size:
            following = _order(self.seed, self.name, n, epoch + 1)
            index = torch.cat([index, following[: size - len(index)]])
        return self.split.take(index.to(self.split.x.device)).trimmed()


@lru_cache(maxsize=2)  # a batch reaches into one epoch or two; shuffling anew costs at each step
def _order(seed: int, stage: str, n: int, epoch: int) -> Tensor:
    return torch.randperm(n, generator=generator(seed, stage, "order", epoch))


def fit(
    model: Transformer,
    stage: Stage,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> State:
    """Train a model in place and leave it with its best weights.

    Args:
        model: on the device of the stage's data.
        stage: what to train.
        checkpoint: where to save now and then, and where to resume from.
        progress: called as ``progress(step, n_steps, loss)`` at evaluations and every 50 steps.

    Raises:
        DivergedError: at a loss that is NaN or infinite, naming the step.
    """
    config, n_steps = stage.config, stage.config.n_steps(len(stage.split))
    trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        [p for _, p in trainable], lr=config.lr, weight_decay=config.weight_decay, fused=True
    )
    eval_steps = {round((i + 1) * n_steps / config.n_evals) for i in range(config.n_evals)} - {0}
    state, best = State(), {}
    if checkpoint is not None and checkpoint.exists():
        state, best = checkpoint.load(State, model, optimizer, trainable)
    pending: list[Tensor] = []  # losses since the last look: reading each at once would stall a GPU

    def flush() -> None:
        losses = torch.stack(pending).tolist() if pending else []
        first = state.step - len(losses) + 1
        pending.clear()
        for step, loss in enumerate(losses, first):
            state.log.append({"stage": stage.name, "step": step, "loss": loss})
            if not math.isfinite(loss):
                raise DivergedError(stage.name, step, state.log)
        if losses and progress is not None:
            progress(state.step, n_steps, losses[-1])

    model.train()
    while state.step < n_steps and not state.stopped:
        step = state.step
        for group in optimizer.param_groups:
            group["lr"] = config.lr * min(1.0, (step + 1) / max(1, config.warmup_steps))
        with torch.random.fork_rng(devices=[], enabled=_has_dropout(model)):
            if _has_dropout(model):
                torch.manual_seed(derive_seed(stage.seed, stage.name, "dropout", step))
            loss = stage.loss(model, stage.batch(step), step)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
        if config.clip:
            torch.nn.utils.clip_grad_norm_([p for _, p in trainable], config.clip)
        optimizer.step()
        pending.append(loss.detach())
        state.step += 1
        if state.step in eval_steps:
            flush()
            best = _evaluate(model, stage, state) or best
        elif len(pending) == 50:
            flush()
        if checkpoint is not None and checkpoint.due(state.step):
            flush()
            checkpoint.save(state, model, optimizer, trainable, best)
    flush()
    model.load_state_dict(best)
    model.eval()
    return state


def _evaluate(model: Transformer, stage: Stage, state: State) -> dict[str, Tensor] | None:
    """Evaluate, log, and decide on stopping; returns a copy of the weights if they are the best."""
    model.eval()
    with torch.no_grad():
        values = stage.evaluate(model)
        score = values.pop("score")
        is_best = score > state.best_score
        if is_best:
            values |= stage.on_best(model)
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
    return {k: v.detach().clone() for k, v in model.state_dict().items()} if is_best else None


def _has_dropout(model: Transformer) -> bool:
    return model.blocks[0].dropout.p > 0


def _pieces(split: Split) -> Iterator[slice]:
    """Pieces of a split that are small enough for one forward pass."""
    size = max(1, min(EVAL_BATCH, EVAL_POSITIONS // split.x[0].numel()))
    return (slice(start, start + size) for start in range(0, len(split), size))


def accuracy(model: Transformer, split: Split) -> dict[str, float]:
    """Classification accuracy and mean cross-entropy (nats) on a split."""
    correct, loss = 0, 0.0
    with torch.no_grad():
        for piece in _pieces(split):
            part = split.take(piece).trimmed()
            logits = model.classify(part.x, part.length)
            correct += int((logits.argmax(-1) == part.y).sum())
            loss += float(F.cross_entropy(logits, part.y, reduction="sum"))
    return {"accuracy": correct / len(split), "loss": loss / len(split)}


def reconstruction(model: Transformer, split: Split, hidden_NT: Tensor) -> dict[str, float]:
    """How well hidden values are reconstructed.

    Returns:
        loss per hidden position, and ``accuracy`` (tokens) or ``r2`` (pixels) as ``score``: the
        criterion by which Amos et al. (2024) pick the checkpoint that goes on to finetuning.
    """
    total, loss, hits = int(hidden_NT.sum()), 0.0, 0
    outputs, targets = [], []
    with torch.no_grad():
        for piece in _pieces(split):
            part = split.take(piece).trimmed()
            hidden = hidden_NT[piece, : part.x.shape[1]]
            out = model.reconstruct(part.x, hidden, part.length)
            loss += float(reconstruction_loss(out, part.x, hidden, model.scale)) * int(hidden.sum())
            if model.kind == "tokens":
                hits += int((out[hidden].argmax(-1) == part.x[hidden]).sum())
            else:
                outputs.append(out[hidden])
                targets.append(part.x[hidden].to(out.dtype) / model.scale)
    if model.kind == "tokens":
        return {"loss": loss / total, "accuracy": hits / total, "score": hits / total}
    y, y_hat = torch.cat(targets), torch.cat(outputs)
    spread = ((y - y.mean()) ** 2).sum()  # 0 if all hidden values are the same: nothing to explain
    r2 = float(1 - ((y - y_hat) ** 2).sum() / spread) if spread > 0 else 0.0
    return {"loss": loss / total, "r2": r2, "score": r2}


def pretrain(
    spec: Pretraining,
    data: TaskData,
    checkpoint: Checkpoint | None = None,
    progress: Callable | None = None,
) -> Trained:
    """Masked reconstruction of all training inputs; labels are never read."""
    config = spec.pretrain
    model = build(spec.model, data, spec.seed, "pretrain").to(data.train.x.device)
    val = data.val.sequences()
    hidden_val = hide(config, val.x, val.length, generator(spec.seed, "val", "mask"))

    def loss(model: Transformer, batch: Split, step: int) -> Tensor:
        g = generator(spec.seed, "pretrain", "mask", step)
        hidden = hide(config, batch.x, batch.length, g)
        output = model.reconstruct(batch.x, hidden, batch.length)
        return reconstruction_loss(output, batch.x, hidden, model.scale)

    def evaluate(model: Transformer) -> dict[str, float]:
        values = reconstruction(model, val, hidden_val)
        score = values.pop("score")
        if config.criterion == "loss":
            score = -values["loss"]
        return {"score": score, **{f"val_{k}": v for k, v in values.items()}}

    stage = Stage(
        name="pretrain",
        config=config,
        seed=spec.seed,
        loss=loss,
        split=data.train.sequences() if config.labelled_only else data.unlabelled,
        evaluate=evaluate,
        sample=_fresh(spec.task, data),
    )
    state = fit(model, stage, checkpoint, progress)
    return Trained(model, state.log, _summary(state))


def finetune(
    run: Run,
    data: TaskData,
    pretrained: dict[str, Tensor] | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Callable | None = None,
) -> Trained:
    """Transfer, freeze, train from labels; the test split is only looked at, never chosen by."""
    model = build(run.model, data, run.seed, "finetune")
    if run.pretrain is not None and pretrained is None:
        raise ConfigError(
            "this Run starts from a pretraining, but no pretrained weights were given"
        )
    report = copy_groups(model, pretrained or {}, run.transfer)
    report["frozen"] = freeze_groups(model, run.freeze)
    model = model.to(data.train.x.device)

    def loss(model: Transformer, batch: Split, step: int) -> Tensor:
        return F.cross_entropy(model.classify(batch.x, batch.length), batch.y)

    def evaluate(model: Transformer) -> dict[str, float]:
        values = accuracy(model, data.val)
        return {"score": values["accuracy"], **{f"val_{k}": v for k, v in values.items()}}

    def on_best(model: Transformer) -> dict[str, float]:
        return {f"test_{k}": v for k, v in accuracy(model, data.test).items()}

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
    )
    state = fit(model, stage, checkpoint, progress)
    return Trained(model, state.log, {**_summary(state), **report})


def _fresh(task, data: TaskData) -> Callable | None:
    return data.sample if task.fresh else None


def _summary(state: State) -> dict:
    """Steps taken, the best evaluation, and the training loss at the end (mean of ≤ 100 steps)."""
    losses = [line["loss"] for line in state.log if "loss" in line]
    best = next(x for x in state.log if x["step"] == state.best_step and "best" in x)
    values = {k: v for k, v in best.items() if k not in ("stage", "step", "best")}
    return {
        "steps": state.step,
        "best_step": state.best_step,
        **values,
        "train_loss": sum(losses[-100:]) / len(losses[-100:]),
    }
