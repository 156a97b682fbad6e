"""Random streams named by what they are for, so that nothing depends on the order of calls.

Every random choice (data, initial weights, batch order of an epoch, mask of a step) draws from its
own generator, seeded by a hash of its name. A resumed training therefore needs no generator state,
and adding a consumer changes no other stream.
"""

import hashlib
import json

import numpy as np
import torch


def derive_seed(*name: str | int) -> int:
    """A 63-bit seed for the stream with this name.

    For example ``derive_seed(3, "pretrain", "mask", 17)``.
    The same on every machine and in every process.
    """
    digest = hashlib.sha256(json.dumps(name).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*name: str | int) -> torch.Generator:
    """A CPU generator for the stream with this name."""
    return torch.Generator().manual_seed(derive_seed(*name))


def frozen_generator(*name: str | int) -> np.random.RandomState:
    """A numpy generator for the stream with this name, for generated data sets.

    `RandomState` is numpy's legacy generator: its streams are the only ones that numpy promises
    never to change (NEP 19), so that a data set has the same bytes under every version.
    """
    seed = derive_seed(*name)
    return np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32])
