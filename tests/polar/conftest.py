"""A base of milliseconds, as a Hugging Face folder."""

import pandas as pd
import pytest

pytest.importorskip("bitsandbytes")

from sptlib.polar import base, generator, presets, qlora

SMALL = presets.get("smoke").base


@pytest.fixture(scope="session")
def posts():
    return pd.concat([generator.generate(n, "train", 24, 0) for n in ("eng", "rus")]).reset_index(
        drop=True
    )


@pytest.fixture(scope="session")
def start(posts, tmp_path_factory):
    with qlora.quiet():
        tokenizer = base.train_tokenizer(posts["text"].tolist(), SMALL.vocab_size)
        model = base.small(SMALL, tokenizer, 0)
        return base.save(model, tokenizer, tmp_path_factory.mktemp("base"))
