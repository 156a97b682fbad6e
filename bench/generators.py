"""How fast data are generated: ListOps beside direct recursion, Pathfinder by itself.

The recursion builds one expression as a string, draws again if its length is out of bounds, and
evaluates it by a second recursion: the published way (Tay et al. 2021). Both are timed in turn, on
one thread; a rate is expressions of the published length per second.
"""

import random
import statistics
import time

from sptlib.formats.listops import evaluate, to_text, tokenise
from sptlib.generators import listops, pathfinder
from sptlib.generators.listops import CANDIDATES, Grammar

ROUNDS = 5
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")


def recursive(rng: random.Random, depth: int) -> tuple[str, int]:
    """One expression in the official form, and its length."""
    if depth >= 10 or rng.random() > 0.25:
        return str(rng.randrange(10)), 1
    text, length = rng.choice(OPERATORS), 2
    for _ in range(rng.randint(2, 10)):
        part, n = recursive(rng, depth + 1)
        text = f"( {text} {part} )"
        length += n
    return f"( {text} ] )", length


def direct(seed: int, seconds: float = 3.0) -> float:
    """Expressions per second by recursion, evaluated."""
    rng, found, start = random.Random(seed), 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        text, length = recursive(rng, 1)
        if 500 < length < 2000:
            evaluate(tokenise(text))
            found += 1
    return found / (time.perf_counter() - start)


def in_blocks(seed: int, blocks: int = 8, text: bool = False) -> float:
    """Expressions per second by the library, evaluated; with ``text``, written out as well."""
    start, found = time.perf_counter(), 0
    for index in range(blocks):
        rows = listops.block(Grammar(), index, seed, "bench")
        found += len(rows)
        if text:
            for row in rows.rows():
                to_text(row)
    return found / (time.perf_counter() - start)


def main() -> None:
    rates = {"recursion": [], "blocks": [], "blocks, as text": []}
    in_blocks(0, 1)
    for i in range(ROUNDS):
        rates["recursion"].append(direct(i))
        rates["blocks"].append(in_blocks(i))
        rates["blocks, as text"].append(in_blocks(i, 2, text=True))
    for name, values in rates.items():
        print(f"ListOps, {name}: {statistics.median(values):,.0f} expressions/s "
              f"({min(values):,.0f} to {max(values):,.0f})")  # fmt: skip
    for name in ("blocks", "blocks, as text"):
        ratios = [a / b for a, b in zip(rates[name], rates["recursion"], strict=True)]
        print(f"ListOps, {name} against recursion: {statistics.median(ratios):.0f} times as fast")
    print(f"(blocks of {CANDIDATES} candidates)")
    for side, contour in ((16, 5), (32, 6), (32, 9), (32, 14), (128, 14)):
        drawing, times = pathfinder.drawing(side, contour), []
        for index in range(3):
            start = time.perf_counter()
            scenes = pathfinder.block(drawing, index, "bench")
            times.append((time.perf_counter() - start) / len(scenes))
        print(f"Pathfinder {side}×{side}, contour {contour}: "
              f"{1e3 * statistics.median(times):.2f} ms/image")  # fmt: skip


if __name__ == "__main__":
    main()
