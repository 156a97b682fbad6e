"""QLoRA for sequence classification: a base in 4 bits, adapters and a head that are trained.

By Transformers, PEFT and bitsandbytes: NF4 with double quantisation for every linear layer of the
base, LoRA on each of them, and the classification head in full precision, outside of both
(Dettmers et al. 2023; settings of Macko et al. 2026).
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    BitsAndBytesConfig,
    PreTrainedTokenizerFast,
    set_seed,
)
from transformers.utils import logging as hf_logging

from sptlib.errors import ConfigError
from sptlib.polar.base import Base
from sptlib.polar.config import QLoRAConfig
from sptlib.polar.labels import Subtask
from sptlib.seeding import derive_seed

#: what the classification head is called; it is neither quantised nor adapted
HEADS = ("score", "classifier")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@contextmanager
def quiet() -> Iterator[None]:
    """Without the libraries' own progress bars and remarks on what is meant to be so."""
    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    other = logging.getLogger("bitsandbytes")
    before = other.level
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    other.setLevel(logging.ERROR)  # that faster kernels could be downloaded
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*torch.utils.checkpoint.*")
            warnings.filterwarnings("ignore", category=FutureWarning)
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()
        other.setLevel(before)


def loaded(
    base: Base,
    config: QLoRAConfig,
    subtask: Subtask,
    device: torch.device,
    allow_pickle: bool = False,
) -> nn.Module:
    """The base with a head for a subtask, quantised if so configured; nothing is trainable yet.

    Args:
        base: what is loaded.
        config: quantisation and precision.
        subtask: two outputs for detection, else one for each label.
        device: where it goes.
        allow_pickle: as in `sptlib.polar.base.opened`.

    Raises:
        ConfigError: if it cannot be loaded, or has no classification head.
    """
    dtype = DTYPES[config.compute_dtype]
    quantisation = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
        llm_int8_skip_modules=[*HEADS, "lm_head"],
    )
    try:
        model = AutoModelForSequenceClassification.from_pretrained(
            base.where,
            num_labels=n_outputs(subtask),
            problem_type=None if subtask.binary else "multi_label_classification",
            quantization_config=quantisation if config.quantise else None,
            dtype=dtype if config.quantise else torch.float32,
            device_map={"": device.index or 0 if device.type == "cuda" else "cpu"},
            use_safetensors=None if allow_pickle else True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        why = str(error).strip().splitlines()[0]
        raise ConfigError(f"the base model {base.where!r} cannot be loaded: {why}") from error
    for module in model.modules():
        # else the first evaluation on some CPUs repacks the weights and rounds their scales to
        # bfloat16: the base would not stay as it is, and numbers would depend on the machine
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    model.config.pad_token_id = base.tokenizer.pad_token_id
    model.config.use_cache = False
    head(model)
    return model


def n_outputs(subtask: Subtask) -> int:
    """Outputs of the head: not polarized and polarized, or one per label."""
    return 2 if subtask.binary else len(subtask.labels)


def head(model: nn.Module) -> str:
    """The name of the classification head; raises `ConfigError` if it has no single linear one."""
    for name in HEADS:
        if isinstance(getattr(model, name, None), nn.Linear):
            return name
    raise ConfigError(
        f"{type(model).__name__} has no linear classification head called {' or '.join(HEADS)}; "
        "is the base a causal language model?"
    )


def ranks(model: nn.Module, rank: int) -> dict[str, int]:
    """The linear layers with a side smaller than the rank, and that side: an adapter's rank there.

    Names are those of modules, as PEFT's ``rank_pattern`` takes them.
    """
    outside = head(model)
    return {
        name: min(module.in_features, module.out_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and name != outside
        and min(module.in_features, module.out_features) < rank
    }


def with_adapters(model: nn.Module, config: QLoRAConfig, seed: int) -> tuple[PeftModel, list[str]]:
    """The model with adapters on all linear layers; these and the head are trainable.

    Args:
        model: of `loaded`.
        config: rank, alpha, dropout.
        seed: of the adapters' and the head's initial weights.

    Returns:
        The model, and messages about what differs from the configuration.
    """
    smaller = ranks(model, config.rank)
    notes = []
    if smaller:
        notes.append(
            f"rank {config.rank} is more than a side of {len(smaller)} layers: "
            f"{min(smaller.values())} there"
        )
    set_seed(derive_seed(seed, "polar", "adapters") % 2**32)
    if config.quantise:
        model = prepare_model_for_kbit_training(
            model,
            use_gradient_checkpointing=config.gradient_checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False},
        )
    elif config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    getattr(model, head(model)).reset_parameters()  # by this seed, whatever was drawn before
    return get_peft_model(
        model,
        LoraConfig(
            task_type="SEQ_CLS",
            r=config.rank,
            lora_alpha=config.alpha,
            lora_dropout=config.dropout,
            bias="none",
            target_modules="all-linear",
            rank_pattern=smaller,
            modules_to_save=[head(model)],
        ),
    ), notes


def reloaded(
    base: Base,
    config: QLoRAConfig,
    subtask: Subtask,
    adapter: Path,
    device: torch.device,
    allow_pickle: bool = False,
) -> PeftModel:
    """The base with saved adapters and head, for predictions.

    Raises:
        ConfigError: if they do not fit each other.
    """
    model = loaded(base, config, subtask, device, allow_pickle)
    if config.quantise:  # the same precision of norms and embeddings as in training
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    try:
        return PeftModel.from_pretrained(model, adapter).eval()
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        why = str(error).strip().splitlines()[0]
        raise ConfigError(f"the adapters in {adapter} do not fit {base.where}: {why}") from error


def tokens(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerFast, max_length: int
) -> tuple[list[list[int]], int]:
    """Token numbers of each text, and how many texts were cut to ``max_length``."""
    found = tokenizer(list(texts), verbose=False)["input_ids"]
    long = [i for i, ids in enumerate(found) if len(ids) > max_length]
    if long:
        again = tokenizer([texts[i] for i in long], truncation=True, max_length=max_length)
        for i, ids in zip(long, again["input_ids"], strict=True):
            found[i] = ids
    return found, len(long)


@torch.no_grad()
def probabilities(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    subtask: Subtask,
    max_length: int,
    batch_size: int = 32,
) -> np.ndarray:
    """(N, L) float64: the probability of each label, in the order of the texts.

    Args:
        model: on any device; it is put into evaluation mode.
        tokenizer: of its base.
        texts: N of them.
        subtask: gives L.
        max_length: longer texts are cut.
        batch_size: texts at a time, of similar length.
    """
    model.eval()
    device = next(model.parameters()).device
    ids, _ = tokens(texts, tokenizer, max_length)
    order = sorted(range(len(ids)), key=lambda i: (len(ids[i]), i))
    out = np.empty((len(ids), len(subtask.labels)))
    for start in range(0, len(order), batch_size):
        some = order[start : start + batch_size]
        batch = tokenizer.pad({"input_ids": [ids[i] for i in some]}, return_tensors="pt")
        logits = model(**{k: v.to(device) for k, v in batch.items()}).logits
        out[some] = as_probability(logits, subtask).cpu().numpy()
    return out


def as_probability(logits: Tensor, subtask: Subtask) -> Tensor:
    """(N, outputs) to (N, L): of being polarized, or of each label."""
    logits = logits.double()
    return logits.softmax(-1)[:, 1:] if subtask.binary else logits.sigmoid()
