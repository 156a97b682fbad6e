"""One training step: this project's Transformer against torch.nn.TransformerEncoder.

Same sizes, same data, same loss, one thread; the contestants alternate, medians and their ratio are
printed. Run it with `make bench`, on a machine that does nothing else.
"""

import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

from sptlib import presets
from sptlib.model import build
from sptlib.positions import sinusoidal
from sptlib.tasks import load

ROUNDS, STEPS = 15, 20


class Peer(nn.Module):
    """The same classifier from PyTorch's own layers."""

    def __init__(self, config, data):
        super().__init__()
        self.embed = nn.Embedding(data.vocab_size + 1, config.width)
        self.register_buffer("position", sinusoidal(data.max_len, config.width))
        layer = nn.TransformerEncoderLayer(
            config.width, config.n_heads, int(config.width * config.mlp_ratio), dropout=0.0,
            activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, config.n_layers, nn.LayerNorm(config.width),
                                             enable_nested_tensor=False)
        self.head = nn.Linear(config.width, data.n_classes)

    def classify(self, x, length=None):
        return self.head(self.encoder(self.embed(x.long()) + self.position).mean(1))


def seconds(model, optimizer, batch) -> float:
    """Mean time of a step."""
    started = time.perf_counter()
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model.classify(batch.x, None), batch.y).backward()
        optimizer.step()
    return (time.perf_counter() - started) / STEPS


def main() -> None:
    torch.set_num_threads(1)
    for task in ("neighbor", "image"):
        run = presets.classroom(task)
        data = load(run.task, 0)
        batch = data.train.take(slice(0, run.finetune.batch_size))
        models = {"sptlib": build(run.model, data, 0, "bench"), "torch": Peer(run.model, data)}
        optimizers = {name: torch.optim.AdamW(m.parameters(), fused=True)
                      for name, m in models.items()}
        times = {name: [] for name in models}
        for i in range(ROUNDS + 2):
            for name, model in models.items():
                took = seconds(model, optimizers[name], batch)
                if i >= 2:  # warm-up
                    times[name].append(took)
        ratio = statistics.median(a / b for a, b in zip(times["sptlib"], times["torch"],
                                                        strict=True))
        print(f"{task:9s} sptlib {1e3 * statistics.median(times['sptlib']):6.2f} ms/step   "
              f"torch.nn {1e3 * statistics.median(times['torch']):6.2f} ms/step   "
              f"ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
