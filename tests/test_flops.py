"""FLOPs and memory of the Transformer in closed form, against PyTorch's own counts."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from sptlib import presets
from sptlib.config import GROUPS, ModelConfig, PretrainConfig
from sptlib.cost import flops, workload
from sptlib.cost.flops import Inputs
from sptlib.model import Transformer
from sptlib.transfer import freeze_groups, group_of

ITEMS, T = 6, 40
INPUTS = {
    "tokens": Inputs("tokens", 3, 50, 17),
    "pixels": Inputs("pixels", 10, 50),
    "pairs": Inputs("tokens", 2, 50, 30, True),
}
MODEL = ModelConfig(width=32, n_layers=2, n_heads=4)
VARIANTS = {
    "plain": {},
    "hidden head": {"head_hidden": True},
    "rope": {"positions": "rope"},
    "alibi": {"positions": "alibi"},
    "learned": {"positions": "learned", "n_layers": 1},
    "max, wide": {"pooling": "max", "mlp_ratio": 4.0},
    "batch norm": {"head_norm": "batch", "n_layers": 3},
}
EACH = pytest.mark.parametrize(
    ("inputs", "model", "stage"),
    [pytest.param(inputs, replace(MODEL, **changes), stage, id=f"{kind}, {name}, {stage}")
     for kind, inputs in INPUTS.items() for name, changes in VARIANTS.items()
     for stage in ("pretrain", "finetune")],
)


def make(model: ModelConfig, inputs: Inputs, device: str = "cpu") -> Transformer:
    with torch.device(device):
        return Transformer(model, kind=inputs.kind, n_classes=inputs.n_classes,
                           max_len=inputs.max_len, vocab_size=inputs.vocab_size,
                           pairs=inputs.pairs)


def loss_of(model, inputs, stage, items, length, padded=False, ratio=1.0) -> torch.Tensor:
    """A loss like those of training; ratio is the share of hidden positions."""
    device = model.norm.weight.device
    shape = (items, 2) if inputs.pairs and stage == "finetune" else (items,)
    x = torch.zeros(*shape, length, dtype=torch.uint8, device=device)
    lengths = torch.full(shape, length, device=device) if padded else None
    if stage == "finetune":
        y = torch.zeros(items, dtype=torch.int64, device=device)
        return F.cross_entropy(model.classify(x, lengths), y)
    hidden = torch.zeros(items, length, dtype=torch.bool, device=device)
    hidden.view(-1)[:int(ratio * hidden.numel())] = True
    out = model.reconstruct(x, hidden, lengths)
    if device.type == "meta":  # where nobody can pick
        return out.mean()
    if inputs.kind == "tokens":
        return F.cross_entropy(out[hidden], x[hidden].long())
    return (out[hidden] - x[hidden]).abs().mean()


def counted(config, inputs, stage, items, length, freeze=()) -> tuple[int, int]:
    """FLOPs of forward and backward by PyTorch's counter, which sees shapes only."""
    model = make(config, inputs, "meta")
    freeze_groups(model, freeze)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = loss_of(model, inputs, stage, items, length)
        ahead = counter.get_total_flops()
        loss.backward()
    return ahead, counter.get_total_flops() - ahead


def saved(config, inputs, stage, padded, *, bf16=False, fused=True) -> int:
    """Bytes that autograd keeps, each storage once, parameters and tables apart."""
    model, kept = make(config, inputs), {}
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # alive, or its place is reused
        return tensor

    with (saved_tensors_hooks(pack, lambda tensor: tensor),
          nullcontext() if fused else sdpa_kernel(SDPBackend.MATH),
          torch.autocast("cpu", torch.bfloat16, enabled=bf16)):
        loss_of(model, inputs, stage, ITEMS, T, padded, 0.25)
    return sum(size for size, _ in kept.values())


@EACH
def test_flops_are_what_pytorch_counts(inputs, model, stage):
    ahead, back = counted(model, inputs, stage, ITEMS, T)
    assert flops.forward(model, inputs, stage, ITEMS, T) == ahead
    assert flops.backward(model, inputs, stage, ITEMS, T) == back
    if inputs.kind == "tokens":  # nothing of a step is spared: three forward passes
        assert back == 2 * ahead


@pytest.mark.parametrize("recipe", ["listops", "image", "retrieval"])
def test_flops_of_published_sizes(recipe):
    work = workload.workload(presets.get("paper", recipe))
    length = work.inputs.max_len
    found = counted(work.model, work.inputs, work.stage, work.items, length)
    where = (*work.arguments(work.items), length)
    assert (flops.forward(*where), flops.backward(*where)) == found


@pytest.mark.parametrize("kind", ["tokens", "pixels"])
def test_what_is_frozen_is_spared(kind):
    some = [f for n in (1, 2, 4, 5) for f in combinations(GROUPS, n)]
    for freeze in some[::3]:
        _, back = counted(MODEL, INPUTS[kind], "finetune", ITEMS, T, freeze)
        assert flops.backward(MODEL, INPUTS[kind], "finetune", ITEMS, T, freeze) == back, freeze


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
def test_parameters_are_those_of_the_model(inputs, changes):
    model, count = replace(MODEL, **changes), {}
    for name, parameter in make(model, inputs).named_parameters():
        count[group_of(name)] = count.get(group_of(name), 0) + parameter.numel()
    assert flops.parameters(model, inputs) == count


@EACH
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_memory_for_backward_is_what_autograd_keeps(inputs, model, stage, padded):
    def expected(**how):
        return flops.activations(model, inputs, stage, ITEMS, T, padded=padded, hidden=0.25, **how)

    for fused in (True, False):
        assert expected(fused=fused) == pytest.approx(
            saved(model, inputs, stage, padded, fused=fused), rel=0.01)
    half = saved(model, inputs, stage, padded, bf16=True)
    if inputs.kind == "pixels" and model.positions in ("rope", "alibi"):
        assert expected(precision="bf16") > half  # the residual stream is in two bytes there
    else:
        assert expected(precision="bf16") == pytest.approx(half, rel=0.01)


@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rope", "alibi"])
def test_state_is_what_training_holds(stage, positions):
    config, inputs, freeze = replace(MODEL, positions=positions), INPUTS["tokens"], ()
    model = make(config, inputs)
    if stage == "finetune":
        freeze = ("embed", "qk")
        freeze_groups(model, freeze)
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, fused=True)
    loss_of(model, inputs, stage, ITEMS, T).backward()
    optimizer.step()
    held = [*model.parameters(), *model.buffers()]  # the best weights are one more copy
    held += [p.grad for p in learning if p.grad is not None] + [*model.parameters()]
    held += [m for s in optimizer.state.values() for k, m in s.items() if k != "step"]
    assert flops.state(config, inputs, stage, freeze) == sum(t.nbytes for t in held)


@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
@pytest.mark.parametrize("more", [{"n_layers": 3}, {"width": 64}, {"mlp_ratio": 3.0}])
def test_larger_models_cost_more(stage, more):
    large, inputs = replace(MODEL, **more), INPUTS["tokens"]
    for count in (flops.forward, flops.backward, flops.activations):
        small = count(MODEL, inputs, stage, ITEMS, T)
        assert small < count(large, inputs, stage, ITEMS, T)
        assert small < count(MODEL, inputs, stage, ITEMS + 1, T)
        assert 2 * small < count(MODEL, inputs, stage, ITEMS, 2 * T) or count is flops.activations
    assert flops.state(MODEL, inputs, stage) < flops.state(large, inputs, stage)


def test_unfused_attention_keeps_a_map_per_head_and_layer():
    maps = MODEL.n_layers * ITEMS * MODEL.n_heads * T * (T - 1) * 4  # less the softmax's sums
    one, other = (flops.activations(MODEL, INPUTS["tokens"], "finetune", ITEMS, T, fused=fused)
                  for fused in (True, False))
    assert other - one == maps


def test_every_precision_of_a_training_has_a_size():
    assert PretrainConfig().precision in flops.BYTES
