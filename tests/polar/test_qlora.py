"""Four bits, adapters and head: what is there, what learns, what stays as it is."""

from dataclasses import replace

import bitsandbytes as bnb
import numpy as np
import pytest
import torch
from peft import PeftModel
from torch import nn

from sptlib.errors import ConfigError, DataError
from sptlib.polar import base, presets, qlora
from sptlib.polar.labels import subtask

CPU = torch.device("cpu")
SMALL = presets.get("smoke").base
QLORA = replace(
    presets.get("smoke").qlora, rank=8, batch_size=4, steps=8, eval_steps=4, max_length=64
)


@pytest.fixture(autouse=True)
def _quiet():
    with qlora.quiet():
        yield


def loaded(start, n=1, **changes):
    return qlora.loaded(start, replace(QLORA, **changes), subtask(n), CPU)


def test_linear_layers_are_of_four_bits_and_the_head_is_not(start):
    model, plain = loaded(start), loaded(start, quantise=False)
    linear = {n: m for n, m in plain.named_modules() if isinstance(m, nn.Linear)}
    for name, layer in linear.items():
        found = model.get_submodule(name)
        if name == "score":
            assert type(found) is nn.Linear
            continue
        assert isinstance(found, bnb.nn.Linear4bit)
        assert found.weight.quant_type == "nf4"
        assert found.weight.quant_state.nested  # the scales are quantised, too
        n_bytes = found.weight.numel() * found.weight.element_size()
        assert n_bytes * 8 == layer.weight.numel() * layer.weight.element_size()
    small, large = model.get_memory_footprint(), plain.get_memory_footprint()
    saved = sum(4 * layer.weight.numel() for n, layer in linear.items() if n != "score")
    assert large - small == pytest.approx(saved * 7 / 8, rel=0.01)


def test_only_adapters_and_head_get_gradients_and_the_base_stays(start, posts):
    model, _ = qlora.with_adapters(loaded(start), QLORA, 0)

    def state():
        return {
            n: v.clone()
            for n, v in model.state_dict().items()
            if "lora_" not in n and "modules_to_save" not in n
        }

    before = state()
    trainable = {n for n, p in model.named_parameters() if p.requires_grad}
    assert all("lora_" in n or "modules_to_save" in n for n in trainable)
    n_adapted = sum(isinstance(m, bnb.nn.Linear4bit) for m in model.modules())
    assert sum("lora_A" in n for n in trainable) == n_adapted == 7
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    for _ in range(3):
        batch = start.tokenizer(posts["text"].tolist()[:4], padding=True, return_tensors="pt")
        model(**batch).logits.square().sum().backward()
        assert {n for n, p in model.named_parameters() if p.grad is not None} == trainable
        optimiser.step()
        optimiser.zero_grad()
    qlora.probabilities(model, start.tokenizer, ["a", "b"], subtask(1), 64)
    after = state()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_saved_adapters_and_base_give_the_same_logits(start, posts, tmp_path):
    model, _ = qlora.with_adapters(loaded(start, 2), QLORA, 0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:  # they start at zero
                value.normal_(std=0.1)
    texts = posts["text"].tolist()
    before = qlora.probabilities(model, start.tokenizer, texts, subtask(2), 64)
    model.save_pretrained(tmp_path)
    again = qlora.reloaded(start, QLORA, subtask(2), tmp_path, CPU)
    assert isinstance(again, PeftModel)
    after = qlora.probabilities(again, start.tokenizer, texts, subtask(2), 64)
    np.testing.assert_array_equal(before, after)
    assert before.shape == (len(texts), 5)
    with pytest.raises(ConfigError, match="do not fit"):
        qlora.reloaded(start, QLORA, subtask(3), tmp_path, CPU)
    with pytest.raises(ConfigError, match="do not fit"):
        qlora.reloaded(start, QLORA, subtask(2), tmp_path / "nothing", CPU)


def test_the_rank_is_capped_by_the_layer_and_said(start):
    model, notes = qlora.with_adapters(loaded(start), replace(QLORA, rank=100), 0)
    assert notes == ["rank 100 is more than a side of 7 layers: 32 there"]
    ranks = {m.r["default"] for m in model.modules() if hasattr(m, "lora_A")}
    assert ranks == {32}
    assert qlora.with_adapters(loaded(start), QLORA, 0)[1] == []


def test_adapters_and_head_start_by_the_seed(start):
    def weights(seed):
        model, _ = qlora.with_adapters(loaded(start), QLORA, seed)
        return torch.cat([p.flatten() for p in model.parameters() if p.requires_grad])

    first = weights(0)
    torch.rand(3)
    assert torch.equal(first, weights(0))
    assert not torch.equal(first, weights(1))


def test_batches_and_order_do_not_matter_to_a_probability(start, posts):
    model, _ = qlora.with_adapters(loaded(start), QLORA, 0)
    texts = [*posts["text"].tolist()[:9], "😀", "مرحبا"]
    together = qlora.probabilities(model, start.tokenizer, texts, subtask(1), 64)
    alone = [qlora.probabilities(model, start.tokenizer, [t], subtask(1), 64)[0] for t in texts]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_long_posts_are_cut_and_counted(start):
    ids, n_cut = qlora.tokens(["short", "x" * 100_000], start.tokenizer, 64)
    assert n_cut == 1
    assert [len(i) for i in ids] == [len(ids[0]), 64]


def test_any_text_survives_the_tokenizer(start):
    for text in ("a\nb", "👩‍👩‍👧 שלום", "\u2028\u200d", "ß ς İ"):
        ids = start.tokenizer(text)["input_ids"]
        assert start.tokenizer.decode(ids, skip_special_tokens=True) == text
    with pytest.raises(ConfigError, match="at least 259"):
        base.train_tokenizer(["a"], 100)


def test_folders_that_are_no_safe_model_are_refused(start, tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        base.opened(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"no config.json"):
        base.opened(str(tmp_path))
    pickled = tmp_path / "pickled"
    model = base.small(SMALL, start.tokenizer, 0)
    base.save(model, start.tokenizer, pickled)
    (pickled / "model.safetensors").unlink()
    with pytest.raises(DataError, match="no weights in it"):
        base.opened(str(pickled))
    torch.save(model.state_dict(), pickled / "pytorch_model.bin")
    with pytest.raises(DataError, match=r"only as pickle.*--allow-pickle"):
        base.opened(str(pickled))
    trusted = base.opened(str(pickled), allow_pickle=True)
    found = qlora.loaded(trusted, QLORA, subtask(1), CPU, allow_pickle=True)
    assert qlora.head(found) == "score"
    with pytest.raises(ConfigError, match="has no linear classification head"):
        qlora.head(nn.Linear(2, 2))


@pytest.mark.parametrize("architecture", ["llama", "opt"])
def test_a_stored_base_is_the_base(start, architecture):
    config = replace(SMALL, architecture=architecture)
    model = base.small(config, start.tokenizer, 3)
    again, tokenizer = base.unpacked(base.packed(model, start.tokenizer), config)
    batch = torch.arange(20).view(2, 10)
    torch.testing.assert_close(model(batch).logits, again(batch).logits, rtol=0, atol=0)
    assert tokenizer("hallo")["input_ids"] == start.tokenizer("hallo")["input_ids"]
