"""The base model: one from Hugging Face, or a small one that is made and self-pretrained here.

The small one is Transformers' own Llama with a byte-level BPE tokenizer trained on the training
posts; its self-pretraining is next-token prediction on the same posts, without their labels.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    set_seed,
)

from sptlib.errors import ConfigError, DataError
from sptlib.polar.config import POSITIONS, BaseConfig
from sptlib.seeding import derive_seed

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
#: name of the tokenizer's bytes among the stored weights of a base
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Base:
    """A base model that can be loaded.

    Attributes:
        where: the folder or the name on the Hub.
        tokenizer: with a padding symbol.
    """

    where: str
    tokenizer: PreTrainedTokenizerFast


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: whatever is written can be written with its symbols.

    Args:
        texts: to train on.
        vocab_size: symbols at most; at least 259, which are the bytes and three marks.

    Raises:
        ConfigError: if ``vocab_size`` is smaller.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + 3:
        raise ConfigError(f"vocab_size must be at least {len(alphabet) + 3}, found {vocab_size}")
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    plain.train_from_iterator(texts, trainer)
    plain.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, plain.token_to_id(BOS))]
    )
    return wrapped(plain.to_str())


def wrapped(content: str) -> PreTrainedTokenizerFast:
    """The tokenizer from its JSON."""
    from tokenizers import Tokenizer

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(content),
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_input_names=["input_ids", "attention_mask"],
    )


def small(config: BaseConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """The small model with random weights, the same for the same seed.

    Args:
        config: its sizes.
        tokenizer: gives the number of symbols.
        seed: of the run.
    """
    set_seed(derive_seed(seed, "polar", "base") % 2**32)
    inner = int(config.width * config.mlp_ratio)
    shared = {
        "vocab_size": len(tokenizer),
        "hidden_size": config.width,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "tie_word_embeddings": True,
    }
    if config.architecture == "opt":
        return OPTForCausalLM(
            OPTConfig(**shared, ffn_dim=inner, word_embed_proj_dim=config.width, dropout=0.0)
        )
    return LlamaForCausalLM(
        LlamaConfig(**shared, intermediate_size=inner, num_key_value_heads=config.n_heads)
    )


def blocks(texts: Sequence[str], tokenizer: PreTrainedTokenizerFast, block: int) -> Tensor:
    """All texts one after the other, each between its marks, cut into blocks: (N, block) int64."""
    ids: list[int] = []
    for piece in tokenizer(list(texts))["input_ids"]:
        ids += [*piece, tokenizer.eos_token_id]
    n = len(ids) // block
    if not n:
        raise ConfigError(
            f"there is too little text for self-pretraining: {len(ids)} tokens do not fill one "
            f"block of {block}; take more posts, or a base without (--base random)"
        )
    return torch.tensor(ids[: n * block]).view(n, block)


def packed(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> dict[str, Tensor]:
    """Weights, and the tokenizer's JSON as bytes, for the run store."""
    content = tokenizer.backend_tokenizer.to_str().encode()
    weights = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
    weights.pop("lm_head.weight")  # the embeddings again
    return {**weights, TOKENIZER: torch.frombuffer(bytearray(content), dtype=torch.uint8)}


def unpacked(stored: dict[str, Tensor], config: BaseConfig) -> tuple:
    """Model and tokenizer from what `packed` gave."""
    weights = dict(stored)
    tokenizer = wrapped(bytes(weights.pop(TOKENIZER).numpy()).decode())
    model = small(config, tokenizer, 0)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if missing != ["lm_head.weight"] or unexpected:
        raise ConfigError(f"these weights are of another base: {missing} {unexpected}")
    model.tie_weights()
    return model, tokenizer


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Base:
    """Write model and tokenizer as Hugging Face lays them out."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Base(str(folder), tokenizer)


def opened(where: str, allow_pickle: bool = False) -> Base:
    """A base model by folder or name on the Hub; its weights are loaded later.

    Without a padding symbol the end mark pads, as published.

    Args:
        where: the folder or name.
        allow_pickle: take weights that exist only in pickle form, which can run any code.

    Raises:
        DataError: for a folder without configuration or weights, or only with pickled ones.
        ConfigError: if there is neither such a folder nor such a model.
    """
    folder = Path(where).expanduser()
    looks_local = where.startswith((".", "/", "~")) or where.count("/") > 1
    if folder.is_dir():
        _check_folder(folder, allow_pickle)
        where = str(folder)
    elif looks_local:
        raise DataError(folder, "there is no such folder")
    try:
        AutoConfig.from_pretrained(where)
        tokenizer = AutoTokenizer.from_pretrained(where)
    except (OSError, ValueError, KeyError, json.JSONDecodeError) as error:
        raise ConfigError(f"the base model {where!r} cannot be opened: {_why(error)}") from error
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ConfigError(f"the tokenizer of {where!r} has neither a padding nor an end mark")
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    return Base(where, tokenizer)


def _why(error: Exception) -> str:
    """What a library said, on one line; a bare key says too little."""
    text = " ".join(str(error).split())[:300]
    return f"its tokenizer lacks {text}" if isinstance(error, KeyError) else text


def _check_folder(folder: Path, allow_pickle: bool) -> None:
    if not (folder / "config.json").is_file():
        raise DataError(folder, "no config.json in it: this is no Hugging Face model")
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in folder.glob(pattern))
    if not pickled:
        raise DataError(folder, "no weights in it: expected *.safetensors")
    if not allow_pickle:
        raise DataError(
            folder,
            f"the weights are there only as pickle ({pickled[0]}), which can run any code when it "
            "is read; convert them to safetensors, or trust them with --allow-pickle",
        )
