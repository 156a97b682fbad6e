"""Parameter groups: a partition, what is copied, what is frozen."""

from dataclasses import replace

import pytest
import torch

from sptlib import tasks
from sptlib.config import ALIASES, GROUPS, ModelConfig, key
from sptlib.errors import ConfigError
from sptlib.execute import compute
from sptlib.model import Transformer, build
from sptlib.tasks import ImageConfig, NeighborConfig
from sptlib.train import finetune, pretrain
from sptlib.transfer import copy_groups, freeze_groups, group_of, movement


def make(kind="tokens", seed=0, max_len=9, **config) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(
        ModelConfig(**{"width": 8, "n_layers": 2, **config}),
        kind=kind,
        n_classes=2,
        max_len=max_len,
        vocab_size=5,
    )


def noise(model: Transformer) -> dict[str, torch.Tensor]:
    """A checkpoint in which every value differs from the model's."""
    return {name: torch.randn_like(p) + 5 for name, p in model.named_parameters()}


@pytest.mark.parametrize("head_hidden", [False, True])
@pytest.mark.parametrize("kind", ["tokens", "pixels"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rope", "alibi", "none"])
def test_every_parameter_belongs_to_a_group(positions, kind, head_hidden):
    model = make(kind, positions=positions, head_hidden=head_hidden)
    found: dict[str, set[str]] = {}
    for name, _ in model.named_parameters():
        found.setdefault(group_of(name), set()).add(name)
    assert set(found) == {*GROUPS, "reconstructor"}
    layers = ("blocks.0", "blocks.1")
    ends = ("weight", "bias")
    assert found["qk"] == {f"{b}.attention.{m}.{e}" for b in layers for m in "qk" for e in ends}
    assert found["vo"] == {f"{b}.attention.{m}.{e}" for b in layers for m in "vo" for e in ends}
    assert found["mlp"] == {f"{b}.mlp.{i}.{e}" for b in layers for i in (0, 2) for e in ends}
    assert found["norm"] == {f"{b}.norm{i}.{e}" for b in layers for i in (1, 2) for e in ends} | {
        "norm.weight",
        "norm.bias",
    }
    assert ("position" in found["embed"]) is (positions == "learned")
    assert all(name.startswith("classifier") for name in found["head"])
    assert found["reconstructor"] == {"reconstructor.weight", "reconstructor.bias"}


@pytest.mark.parametrize(
    "groups", [(), *((g,) for g in (*GROUPS, *ALIASES)), ("qk", "head")], ids=str
)
def test_copies_exactly_the_groups(groups):
    model = make(positions="learned")
    source, before = noise(model), {k: v.clone() for k, v in model.state_dict().items()}
    report = copy_groups(model, source, groups)
    wanted = {g for name in groups for g in ALIASES.get(name, (name,))}
    expected = [name for name in before if group_of(name) in wanted]
    assert report == {"copied": expected, "reinitialised": []}
    for name, value in model.state_dict().items():
        assert torch.equal(value, source[name] if name in expected else before[name]), name


def test_what_does_not_fit_keeps_its_random_start_and_is_reported():
    model, source = make(positions="learned"), noise(make(positions="learned", max_len=12))
    del source["norm.bias"]
    before = {name: model.get_parameter(name).clone() for name in ("position", "norm.bias")}
    report = copy_groups(model, source, ("embed", "norm"))
    assert report["reinitialised"] == ["position", "norm.bias"]
    assert "embed.weight" in report["copied"]
    assert all(torch.equal(model.get_parameter(name), value) for name, value in before.items())


def test_unknown_groups_are_refused():
    for call in (lambda: copy_groups(make(), {}, ("kq",)), lambda: freeze_groups(make(), ("kq",))):
        with pytest.raises(ConfigError, match="did you mean 'qk'"):
            call()


def test_the_source_is_not_tied_to_the_model():
    model = make()
    source = noise(model)
    copy_groups(model, source, ("all",))
    model.norm.bias.data.add_(1)
    assert not torch.equal(model.norm.bias, source["norm.bias"])


def test_movement_is_the_relative_change_of_a_group_as_a_whole():
    before = {
        "blocks.0.attention.q.weight": torch.tensor([3.0, 0.0]),
        "blocks.1.attention.k.bias": torch.tensor([4.0]),
        "blocks.0.mlp.0.weight": torch.tensor([2.0]),
        "blocks.0.norm1.bias": torch.tensor([0.0]),
        "classifier.bias": torch.tensor([0.0]),
        "classifier.weight": torch.tensor([1.0]),
        "position": torch.tensor([1.0]),
        "reconstructor.weight": torch.tensor([1.0]),
    }
    after = {name: value.clone() for name, value in before.items()}
    after["blocks.0.attention.q.weight"] += torch.tensor([0.0, 6.0])
    after["blocks.1.attention.k.bias"] -= 8.0
    after["blocks.0.norm1.bias"] += 1.0  # relative to nothing: left out
    after["classifier.bias"] += 2.0
    after["reconstructor.weight"] += 1.0  # belongs to no group
    found = movement(before, after)
    # queries and keys: (36 + 64) / (9 + 16)
    assert found == {"embed": 0.0, "qk": 2.0, "mlp": 0.0, "head": 2.0}
    assert list(found) == [group for group in GROUPS if group in found]


def test_movement_reads_the_parameters_and_leaves_them_alone():
    model = make()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert set(movement(start, dict(model.named_parameters())).values()) == {0.0}
    assert set(movement(start, start)) == set(GROUPS)
    model.get_parameter("blocks.1.mlp.2.bias").data.mul_(3)
    moved = movement(start, dict(model.named_parameters()))
    assert [group for group, value in moved.items() if value] == ["mlp"]
    assert torch.equal(model.blocks[1].mlp[2].bias, 3 * start["blocks.1.mlp.2.bias"])


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_a_share_is_a_part_of_the_way(share):
    model = make(positions="learned")
    source, before = noise(model), {k: v.clone() for k, v in model.state_dict().items()}
    report = copy_groups(model, source, ("qk", "embed"), share)
    assert report == copy_groups(make(positions="learned"), source, ("qk", "embed"))
    for name, value in model.state_dict().items():
        if name not in report["copied"]:
            assert torch.equal(value, before[name]), name
        elif share in (0.0, 1.0):  # to the last bit
            assert torch.equal(value, source[name] if share else before[name]), name
        else:
            between = before[name].double().lerp(source[name].double(), share)
            torch.testing.assert_close(value.double(), between, rtol=1e-6, atol=1e-6)


# --- through training ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "freeze", [(), ("qk",), ("vo", "mlp"), ("embed", "norm"), ("all",), ("head",)], ids=str
)
def test_labels_change_everything_but_what_is_frozen(tiny, freeze):
    run = replace(
        tiny,
        freeze=freeze,
        model=replace(tiny.model, positions="learned"),
        finetune=replace(tiny.finetune, weight_decay=0.1, n_evals=1),
    )
    data = tasks.load(run.task, 0)
    source = pretrain(run.pretraining, data).model.state_dict()
    trained = finetune(run, data, source)
    start = build(run.model, data, run.seed, "finetune")
    copy_groups(start, source, run.transfer)
    for name, value in trained.model.state_dict().items():
        same = torch.equal(value, start.state_dict()[name])
        untouched = group_of(name) in (
            *run.freeze,
            "reconstructor",
        )  # labels do not reach that head
        assert same is untouched, name
    assert trained.result["frozen"] == [
        n for n, _ in start.named_parameters() if group_of(n) in run.freeze
    ]
    still = {group for group in GROUPS if trained.result[f"moved_{group}"] == 0.0}
    assert still == {group for group in GROUPS if group in run.freeze}


def test_only_named_groups_come_from_the_pretraining(tiny):
    run = replace(tiny, transfer=("qk",), freeze=("qk", "vo"))
    data = tasks.load(run.task, 0)
    source = pretrain(run.pretraining, data).model.state_dict()
    trained = finetune(run, data, source)
    random = build(run.model, data, run.seed, "finetune").state_dict()
    for name in trained.result["frozen"]:
        expected = source if group_of(name) == "qk" else random
        assert torch.equal(trained.model.state_dict()[name], expected[name]), name
    assert {group_of(name) for name in trained.result["copied"]} == {"qk"}


def test_pretraining_is_needed_where_it_is_named(tiny):
    with pytest.raises(ConfigError, match="no pretrained weights were given"):
        finetune(tiny, tasks.load(tiny.task, 0), None)


@pytest.mark.parametrize(
    ("source", "misfits"),
    [
        (NeighborConfig(length=20, n_train=48, n_val=16, n_test=16), {"position"}),
        (ImageConfig(n_train=48, n_val=16, n_test=16), {"position", "embed.weight"}),
        (
            ImageConfig(n_train=48, n_val=16, n_test=16, tokenised=False),
            {"position", "embed.weight", "embed.bias"},
        ),
    ],
    ids=["length", "tokens", "pixels"],
)
def test_pretraining_on_another_task(tiny, store, where, source, misfits):
    run = replace(
        tiny,
        pretrain=replace(tiny.pretrain, task=source),
        model=replace(tiny.model, positions="learned"),
    )
    entry = compute(run, store, where)
    other = store.get(run.pretraining)
    assert other.spec.task == source
    names = set(entry.model())
    assert set(entry.result["reinitialised"]) == misfits & names
    copied = set(entry.result["copied"])
    assert copied == {n for n in names if group_of(n) not in ("head", "reconstructor")} - misfits


@pytest.mark.parametrize("transfer", [("qk",), ("all",)], ids=str)
def test_finetuning_starts_at_the_share(tiny, transfer):
    run = replace(tiny, transfer=transfer, finetune=replace(tiny.finetune, watch=1))
    data = tasks.load(run.task, 0)
    source = pretrain(run.pretraining, data).model.state_dict()
    runs = {share: replace(run, transfer_share=share) for share in (0.0, 0.5, 1.0)}
    assert len({one.pretraining for one in runs.values()}) == 1
    assert len({key(one) for one in runs.values()}) == 3
    assert runs[1.0] == run
    trained = {share: finetune(one, data, source) for share, one in runs.items()}
    none = finetune(replace(run, transfer=()), data, source)
    # a random start, bit by bit; reconstruction is measured with the head of the pretraining
    logs = [
        [{k: v for k, v in line.items() if k != "reconstruction"} for line in one.metrics]
        for one in (trained[0.0], none)
    ]
    assert logs[0] == logs[1]
    start = build(run.model, data, run.seed, "finetune").state_dict()
    for name in trained[0.5].result["copied"]:
        middle = (start[name] + source[name]) / 2
        torch.testing.assert_close(trained[0.5].snapshots[0][name], middle)
        assert torch.equal(trained[1.0].snapshots[0][name], source[name])


def test_without_pretraining_there_is_no_share(tiny):
    scratch = replace(tiny, pretrain=None)
    assert replace(scratch, transfer_share=0.5) == scratch
    for wrong in (-0.1, 1.1):
        with pytest.raises(ValueError, match="transfer_share"):
            replace(tiny, transfer_share=wrong)
