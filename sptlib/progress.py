"""What a sweep shows while it computes: how much is done, what is running, when it will end."""

import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from sptlib.config import ALIASES, Pretraining, Run, to_dict

LINE_SECONDS = 10.0  # between two lines where the output is no terminal
PACE_SECONDS = 3.0  # to watch before the end is estimated


def describe(fields: dict[str, Any]) -> str:
    """How a training starts, in a few words, from its configuration as it is stored."""
    if str(fields.get("kind", "")).startswith("polar"):
        return _polar(fields)
    pretrain = fields.get("pretrain") or {}
    words = []
    if fields.get("kind") == "pretraining":
        words.append("pretraining")
    elif not pretrain:
        words.append("scratch")
    else:
        groups = fields.get("transfer") or []
        words.append("SPT" if groups == list(ALIASES["all"]) else f"SPT[{','.join(groups)}]")
        if pretrain.get("task"):
            words.append(f"on {pretrain['task'].get('name')}")
    if pretrain.get("labelled_only"):
        words.append("labelled inputs only")
    if fields.get("freeze"):
        words.append(f"freeze[{','.join(fields['freeze'])}]")
    if n_labels := fields.get("task", {}).get("n_labels"):
        words.append(f"{n_labels} labels")
    return ", ".join(words)


def _polar(fields: dict[str, Any]) -> str:
    base, rate = fields.get("base") or {}, (fields.get("augment") or {}).get("rate") or 0
    name = base.get("model") or f"{base.get('architecture')} ({base.get('kind')})"
    copies = f"copies of {rate:.0%}" if rate else "no copies"
    if fields["kind"] == "polar_base":
        return f"pretraining of {name}, {copies}"
    return f"QLoRA of {name}, subtask {(fields.get('task') or {}).get('subtask')}, {copies}"


def title(spec: Run | Pretraining) -> str:
    """A training in a few words: task, seed, how it starts."""
    return f"{spec.task.name}, seed {spec.seed}: {describe(to_dict(spec))}"


def duration(seconds: float) -> str:
    """Seconds for people: "40 s", "12 min", "3 h 20 min", "2 d 4 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def size(n_bytes: float) -> str:
    """Bytes with a unit: "512 B", "3.4 MB"."""
    for unit, many in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= many:
            return f"{n_bytes / many:.1f} {unit}"
    return f"{n_bytes:.0f} B"


class Board:
    """Progress of a sweep on stderr: bars in a terminal, else a line now and then.

    Args:
        nodes: everything that will be computed, by key.
    """

    def __init__(self, nodes: Mapping[str, Run | Pretraining]):
        self.nodes = nodes
        self.weight = {name: float(spec.n_steps) for name, spec in nodes.items()}
        self.part = dict.fromkeys(nodes, 0.0)  # of each training, from 0 to 1
        self.finished: set[str] = set()
        self.note = ""
        self._first: tuple[float, float] | None = None
        self.started = self._printed = time.monotonic()
        console = Console(stderr=True)
        self._bars = None
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
            )
            self._bars = Progress(*columns, console=console, transient=True)
            self._total = self._bars.add_task("all", total=1.0, text="")
            self._rows: dict = {}

    def __enter__(self) -> "Board":
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def step(self, name: str, stage: str, step: int, n_steps: int, loss: float) -> None:
        """A training has come to a step."""
        if name in self.finished:  # the news came late
            return
        self.part[name] = step / n_steps
        if self._bars is not None:
            if name not in self._rows:
                self._rows[name] = self._bars.add_task(title(self.nodes[name]), total=1.0, text="")
            text = f"step {step} of {n_steps}, loss {loss:.4f}"
            self._bars.update(self._rows[name], completed=self.part[name], text=text)
        self.show()

    def done(self, name: str, error: str = "") -> None:
        """A training is stored, or has failed."""
        self.part[name] = 1.0
        self.finished.add(name)
        if self._bars is not None and name in self._rows:
            self._bars.remove_task(self._rows.pop(name))
        if error:
            self.say(f"failed: {title(self.nodes[name])}: {error}")
        self.show(final=len(self.finished) == len(self.nodes))

    def say(self, text: str) -> None:
        """One line for the reader, above the bars."""
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def left(self) -> float | None:
        """Estimated seconds until the end, at the pace since the first news; None while unknown."""
        done = self._done()
        if self._first is None:  # processes were started before: that is no pace
            self._first = (time.monotonic(), done) if done else None
            return None
        at, before = self._first
        passed = time.monotonic() - at
        if done <= before or passed < PACE_SECONDS:
            return None
        return passed * (sum(self.weight.values()) - done) / (done - before)

    def _done(self) -> float:
        return sum(self.weight[name] * part for name, part in self.part.items())

    def show(self, final: bool = False) -> None:
        """Bring what is seen up to date."""
        left = self.left()
        text = f"{len(self.finished)} of {len(self.nodes)} trainings"
        if final:
            text += f" in {duration(time.monotonic() - self.started)}"
        elif left is not None:
            text += f", {duration(left)} left"
        text += self.note
        now = time.monotonic()
        if self._bars is not None:
            share = self._done() / sum(self.weight.values())
            self._bars.update(self._total, completed=share, text=text)
        elif final or now - self._printed >= LINE_SECONDS:
            self._printed = now
            print(text, file=sys.stderr, flush=True)
