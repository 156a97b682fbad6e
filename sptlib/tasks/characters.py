"""Texts as sequences of small numbers: bytes as they are, or a small alphabet.

The Long Range Arena reads texts character by character, so that a model has to put words together
by itself. `bytes` keeps all 256 values; `simple` folds them to few symbols, which a small model
learns in minutes: lower case, every digit the same, markup out.
"""

import re
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Alphabet = Literal["bytes", "simple"]

#: the symbols of the small alphabet in the order of their numbers; # is any digit, ~ anything else
SIMPLE = " abcdefghijklmnopqrstuvwxyz#.,!?'\"-():;/&$%*~"

_MARKUP = re.compile(rb"<[^<>]{1,20}>")
_SPACE = re.compile(rb"\s+")


def symbols(alphabet: Alphabet) -> tuple[str, ...]:
    """What each number stands for; bytes that are no printable ASCII as ``\\xNN``."""
    if alphabet == "simple":
        return tuple(SIMPLE)
    return tuple(chr(b) if 32 <= b < 127 else f"\\x{b:02x}" for b in range(256))


def _table() -> bytes:
    table = bytearray([SIMPLE.index("~")] * 256)
    for number, symbol in enumerate(SIMPLE):
        table[ord(symbol)] = table[ord(symbol.upper())] = number
    for digit in b"0123456789":
        table[digit] = SIMPLE.index("#")
    return bytes(table)


_TABLE = _table()


def numbers(text: bytes, alphabet: Alphabet) -> bytes:
    """A text as one number per position."""
    if alphabet == "bytes":
        return text
    return _SPACE.sub(b" ", _MARKUP.sub(b" ", text)).strip().translate(_TABLE)


def padded(texts: list[bytes], max_len: int) -> tuple[Tensor, Tensor]:
    """Texts of numbers as one tensor.

    Args:
        texts: of `numbers`; an empty one becomes a single 0, since attention needs a position.
        max_len: what is longer is cut.

    Returns:
        x (N, T) uint8 with zeros behind the end, T = the longest kept; lengths (N,) int64.
    """
    texts = [t or b"\0" for t in texts]
    length = np.array([min(len(t), max_len) for t in texts], dtype=np.int64)
    x = np.zeros((len(texts), int(length.max(initial=1))), dtype=np.uint8)
    kept = np.arange(x.shape[1]) < length[:, None]
    x[kept] = np.frombuffer(b"".join(t[:max_len] for t in texts), dtype=np.uint8)
    return torch.from_numpy(x), torch.from_numpy(length)
