"""How large everything is, as in `sptlib.presets`: the small offline base, and the published run.

With the small base, rates are a hundred times the published ones and posts come 16 at a time: it
has four orders of magnitude fewer parameters. They were chosen on seeds from 100 on.
"""

from dataclasses import replace

from sptlib.errors import unknown
from sptlib.polar.config import AugmentConfig, BaseConfig, PolarRun, PolarTask, QLoRAConfig
from sptlib.presets import check

#: what `base` may be besides a folder or a name on the Hub
OFFLINE = ("offline", "random")
#: the rate of copies that so few posts need; the published one is a twentieth
RATE = 0.25

_SMALL = QLoRAConfig(
    compute_dtype="fp32",
    lr=2e-3,
    warmup_ratio=0.05,
    batch_size=16,
    steps=600,
    max_length=128,
    eval_steps=150,
    gradient_checkpointing=False,
)


def smoke(subtask: int) -> PolarRun:
    """Runs everything and shows nothing."""
    return PolarRun(
        task=PolarTask(subtask=subtask, n_train=20, n_val=8, n_test=10),
        base=BaseConfig(vocab_size=400, width=32, n_layers=1, n_heads=2, steps=4, batch_size=8),
        augment=AugmentConfig(rate=RATE),
        qlora=replace(_SMALL, steps=4, eval_steps=2, batch_size=8),
    )


def classroom(subtask: int) -> PolarRun:
    """Half a minute on one CPU core."""
    return PolarRun(
        task=PolarTask(subtask=subtask, n_test=80),
        base=BaseConfig(steps=250),
        augment=AugmentConfig(rate=RATE),
        qlora=replace(_SMALL, steps=300, eval_steps=100),
    )


def study(subtask: int) -> PolarRun:
    """More posts, and for longer; detection, where copies are compared, for twice as long."""
    return PolarRun(
        task=PolarTask(subtask=subtask, n_train=600, n_test=200),
        base=BaseConfig(steps=600),
        augment=AugmentConfig(rate=RATE),
        qlora=replace(_SMALL, steps=1200, eval_steps=200) if subtask == 1 else _SMALL,
    )


def paper(subtask: int) -> PolarRun:
    """The published settings, with the smallest of the published bases; needs a GPU."""
    return PolarRun(
        task=PolarTask(subtask=subtask, source="files"),
        base=BaseConfig(kind="model", model="Qwen/Qwen3-4B-Base"),
    )


PRESETS = {"smoke": smoke, "classroom": classroom, "study": study, "paper": paper}


def get(preset: str, subtask: int = 1, base: str = "", files: bool = False) -> PolarRun:
    """The run of a preset.

    Args:
        preset: its name.
        subtask: 1, 2 or 3.
        base: "" = the preset's; "offline" or "random" = the small one, self-pretrained or not;
            else a Hugging Face folder or name, which gets the published settings at any preset but
            smoke.
        files: posts from files rather than synthetic ones.

    Raises:
        ConfigError: for an unknown preset or subtask, or an empty name.
    """
    run = PRESETS[check(preset)](subtask)
    if base in OFFLINE:
        small = PRESETS["study" if preset == "paper" else preset](subtask)
        kind = "spt" if base == "offline" else "random"
        run = replace(small, task=run.task, base=replace(small.base, kind=kind))
    elif base:
        run = replace(run, base=BaseConfig(kind="model", model=base))
        if preset != "smoke":
            run = replace(run, augment=AugmentConfig(), qlora=QLoRAConfig())
    if files:
        run = replace(run, task=PolarTask(subtask=subtask, source="files"))
        if run.base.kind != "model":  # a sample of some hundred posts is learnt by heart soon
            steps = min(run.qlora.steps, 400)
            run = replace(
                run,
                base=replace(run.base, steps=min(run.base.steps, 400)),
                qlora=replace(run.qlora, steps=steps, eval_steps=min(run.qlora.eval_steps, 100)),
            )
    return run


def known_base(name: str) -> str:
    """The name itself; raises `ConfigError` for what is a mistyped "offline" or "random"."""
    if name and name not in OFFLINE and "/" not in name and not name.startswith("."):
        raise unknown("base", name, (*OFFLINE, "a folder such as ./model", "OWNER/NAME on the Hub"))
    return name
