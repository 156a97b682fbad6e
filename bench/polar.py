"""The second system: copies of posts, and a QLoRA step against one of plain LoRA.

One thread; the contestants alternate, medians and their ratio are printed. Run it with `make
bench`, on a machine that does nothing else.
"""

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

from sptlib.polar import augment, base, generator, presets, qlora
from sptlib.polar.labels import subtask

ROUNDS = 7
STEPS = 10


def seconds(run) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def posts() -> pd.DataFrame:
    return pd.concat([generator.generate(n, "train", 240, 0) for n in generator.languages()])


def copies(table: pd.DataFrame) -> None:
    """Posts per second of each kind of copy; the tables of other packages are read before."""
    for kind in augment.KINDS:
        augment.copies(table.head(50), kind, 0)
        took = statistics.median(
            seconds(lambda kind=kind: augment.copies(table, kind, 0)) for _ in range(3)
        )
        print(f"{kind}: {len(table) / took:,.0f} posts/s")


def steps(table: pd.DataFrame) -> None:
    """Forward, backward and update of the small base on a batch of the classroom preset."""
    run = presets.get("classroom")
    texts, asked = table["text"].tolist(), subtask(1)
    with qlora.quiet(), tempfile.TemporaryDirectory() as folder:
        tokenizer = base.train_tokenizer(texts, run.base.vocab_size)
        start = base.save(base.small(run.base, tokenizer, 0), tokenizer, Path(folder))
        trained = {}
        for name, config in {
            "4-bit": run.qlora,
            "4-bit, bf16": replace(run.qlora, compute_dtype="bf16"),
            "not quantised": replace(run.qlora, quantise=False),
        }.items():
            model = qlora.loaded(start, config, asked, torch.device("cpu"))
            size = model.get_memory_footprint()
            model, _ = qlora.with_adapters(model, config, 0)
            parameters = [p for p in model.parameters() if p.requires_grad]
            trained[name] = (model.train(), torch.optim.AdamW(parameters, 1e-3), size)
        batch = tokenizer(texts[: run.qlora.batch_size], padding=True, return_tensors="pt")

        def some(model, optimiser) -> None:
            for _ in range(STEPS):
                model(**batch).logits.float().logsumexp(-1).sum().backward()
                optimiser.step()
                optimiser.zero_grad()

        times = {name: [] for name in trained}
        for _ in range(ROUNDS):
            for name, (model, optimiser, _) in trained.items():
                took = seconds(lambda m=model, o=optimiser: some(m, o))
                times[name].append(took / STEPS)
        reference = statistics.median(times["not quantised"])
        for name, (_, _, size) in trained.items():
            median = statistics.median(times[name])
            ratio = median / reference
            print(f"{name}: {1000 * median:.1f} ms/step, {ratio:.2f} of not quantised; "
                  f"base {size / 1e6:.2f} MB")  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    everything = posts()
    copies(everything)
    steps(everything)
