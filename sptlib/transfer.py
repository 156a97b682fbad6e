"""Parameter groups: which weights come from a pretrained model, and which ones labels may change.

Groups: embed (token or pixel embedding, mask embedding, learned positions), qk (W_Q, W_K), vo (W_V,
W_O), mlp, norm (every LayerNorm), head (classifier); qkvo = qk + vo, all = everything but the head.
The reconstruction head belongs to no group: it ends with pretraining.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sptlib.config import GROUPS, expand_groups

_OWNERS = {
    "embed": "embed",
    "position": "embed",
    "norm": "norm",
    "classifier": "head",
    "reconstructor": "reconstructor",
}
_IN_BLOCK = {"norm1": "norm", "norm2": "norm", "mlp": "mlp"}
_IN_ATTENTION = {"q": "qk", "k": "qk", "v": "vo", "o": "vo"}


def group_of(name: str) -> str:
    """The group of a parameter, by its name in `Transformer.named_parameters()`."""
    parts = name.split(".")
    if parts[0] != "blocks":
        return _OWNERS[parts[0]]
    return _IN_ATTENTION[parts[3]] if parts[2] == "attention" else _IN_BLOCK[parts[2]]


def copy_groups(
    model: nn.Module, source: Mapping[str, Tensor], groups: tuple[str, ...], share: float = 1.0
) -> dict[str, list[str]]:
    """Copy the parameters of some groups from a checkpoint into a model.

    Args:
        model: changed in place.
        source: tensors by parameter name.
        groups: names or aliases; unknown ones raise `ConfigError`.
        share: how much of the checkpoint's values; the rest is the model's own start.

    Returns:
        ``{"copied": [...], "reinitialised": [...]}``: names of wanted parameters that were copied,
        and of those whose shape did not fit or that the checkpoint lacks: they keep their random
        start.
    """
    wanted = expand_groups(groups)
    report: dict[str, list[str]] = {"copied": [], "reinitialised": []}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if group_of(name) not in wanted:
                continue
            fits = name in source and source[name].shape == parameter.shape
            if fits:
                pretrained = source[name].to(parameter.device)
                parameter.copy_(
                    pretrained if share == 1 else (1 - share) * parameter + share * pretrained
                )
            report["copied" if fits else "reinitialised"].append(name)
    return report


def copy_head(model: nn.Module, source: Mapping[str, Tensor]) -> None:
    """Copy the reconstruction head, which belongs to no group, where its shape fits."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            fits = name in source and source[name].shape == parameter.shape
            if group_of(name) == "reconstructor" and fits:
                parameter.copy_(source[name])


def freeze_groups(model: nn.Module, groups: tuple[str, ...]) -> list[str]:
    """Exclude groups from training; returns the names of the frozen parameters."""
    frozen = [
        name for name, _ in model.named_parameters() if group_of(name) in expand_groups(groups)
    ]
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    return frozen


def movement(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, float]:
    """How far each parameter group has moved: ‖θ − θ₀‖ / ‖θ₀‖ over all its parameters together.

    Args:
        before: parameters by name, at the start.
        after: the same names.

    Returns:
        By group, for those that start with a norm above 0; the reconstruction head is left out.
    """
    squares: dict[str, list[float]] = {}
    for name, start in before.items():
        moved = after[name].detach().double().cpu() - start.detach().double().cpu()
        sums = squares.setdefault(group_of(name), [0.0, 0.0])
        sums[0] += float((moved**2).sum())
        sums[1] += float((start.detach().double() ** 2).sum())
    return {
        group: (squares[group][0] / squares[group][1]) ** 0.5
        for group in GROUPS
        if group in squares and squares[group][1] > 0
    }
