"""`sptlib polar`: look at posts, copy them, train, predict, evaluate."""

from pathlib import Path

import click

from sptlib import cli_options as options
from sptlib.errors import ConfigError, DataError

# everything heavier is imported inside the command that needs it: `sptlib --help` is instant

_folder = click.argument("folder", type=click.Path(path_type=Path))
_subtask = click.option(
    "--subtask",
    type=click.IntRange(1, 3),
    default=1,
    show_default=True,
    help="1 detection, 2 type, 3 manifestation.",
)
_languages = click.option(
    "--languages", default="", metavar="A,B", help="Only these (eng, deu, ...); default: all."
)
_split = click.option("--split", default="dev", show_default=True, help="train, dev or test.")
_seed = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)


def _out(what: str):
    return click.option(
        "--out", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help=what
    )


@click.group()
def polar() -> None:
    """Polarization in 22 languages (SemEval-2026 Task 9): QLoRA on augmented posts.

    FOLDER has POLAR's public layout, train/LANG.csv and dev/LANG.csv with all labels, or that of
    its competition, subtask1/train/LANG.csv; `sptlib polar make` writes synthetic posts like these.
    """


@polar.command()
@_folder
@click.option("--n-train", type=click.IntRange(min=1), default=240, show_default=True)
@click.option("--n-dev", type=click.IntRange(min=1), default=100, show_default=True)
@_languages
@_seed
def make(folder, n_train, n_dev, languages, seed) -> None:
    """Write synthetic posts, so many per language, in the public layout."""
    import pandas as pd

    from sptlib.polar import data, generator

    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already and not an empty folder; name another one")
    names = _codes(languages) or generator.languages()
    made = [generator.splits(name, {"dev": n_dev, "train": n_train}, seed) for name in names]
    n = 0
    for split in ("train", "dev"):
        posts = pd.concat([one[split] for one in made], ignore_index=True)
        n += len(data.write(posts, folder, split))
    click.echo(f"{n} files of {len(names)} languages in {folder}")


@polar.command()
@_folder
@_languages
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the shares of the labels as a picture, too: FILE.png, .svg or .pdf.",
)
def stats(folder, languages, plot) -> None:
    """Posts, repeated texts, characters (median) and share of each label, by language."""
    from sptlib.polar import statistics

    if plot is not None:
        _check_picture(plot)
    posts = statistics.of_folder(folder, _codes(languages))
    table = statistics.table(posts)
    shown = table.drop(columns="language")
    labels = shown.columns[3:]
    shown[labels] = shown[labels].map(lambda v: "–" if v != v else f"{v:.2f}")
    short = {"polarization": "polarized", "racial/ethnic": "racial", "gender/sexual": "gender",
             "stereotype": "stereot.", "vilification": "vilif.", "dehumanization": "dehuman.",
             "extreme_language": "extreme", "lack_of_empathy": "empathy",
             "invalidation": "invalid."}  # fmt: skip
    click.echo(shown.rename(columns=short).to_string())
    click.echo(f"{len(posts)} posts in {posts['lang'].nunique()} languages")
    if plot is not None:
        from sptlib.polar import plots

        plots.shares(table.loc[posts["split"].iloc[0]]).savefig(plot)
        click.echo(f"picture of {posts['split'].iloc[0]}: {plot}")


def _check_folder(path: Path) -> None:
    for part in (path, *path.absolute().parents):
        if part.exists() and not part.is_dir():
            raise ConfigError(f"{part} is no folder; nothing can be written there")


def _check_picture(path: Path) -> None:
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"{path}: the name of a picture ends in .png, .svg or .pdf")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}")


@polar.command()
@_folder
@_out("Where training posts with their copies go, in the same layout.")
@click.option("--rate", type=float, default=0.05, show_default=True, help="Of each kind of copy.")
@click.option("--kinds", default="", metavar="A,B", help="Of anonymised, lower, upper, homoglyph.")
@click.option(
    "--joiners/--no-joiners", default=True, help="Zero-width joiners in homoglyphed copies."
)
@click.option("--subtask", type=click.IntRange(1, 3), default=1, help="In the competition layout.")
@_languages
@_seed
def augment(folder, out, rate, kinds, joiners, subtask, languages, seed) -> None:
    """Add copies of a share of the training posts: what `train` does by itself, as files."""
    from sptlib.polar import augment as forms
    from sptlib.polar import data

    _check_folder(out)
    chosen = _words(kinds, "--kinds") or forms.KINDS
    posts = data.read(folder, "train", subtask, _codes(languages), labelled=False)
    place = out / f"subtask{subtask}" if data.layout(folder, subtask) != folder else out
    if (place / "train").exists():
        raise ConfigError(f"{place / 'train'} is there already; name another folder")
    joined = forms.CHARACTERS if joiners else 0.0
    once, n_again = data.unique(posts.table)
    made = forms.augment(once, seed, dict.fromkeys(chosen, rate), joined)
    data.write(made.posts, place, "train")
    for note in (*posts.notes, *([f"{n_again} posts were there twice"] if n_again else [])):
        click.echo(note)
    for sentence in made.sentences():
        click.echo(sentence)
    caseless = forms.caseless(once)
    if caseless and {"lower", "upper"} & set(chosen):
        click.echo(
            f"scripts without case, which lower and upper leave alone: {', '.join(caseless)}"
        )
    click.echo(f"{len(made.posts)} posts, {len(once)} of them original, in {place / 'train'}")
    click.echo("train on them with --set augment.rate=0, which adds no copies of copies")


@polar.command()
@_folder
@_out("Where the model goes.")
@_subtask
@click.option(
    "--base",
    default="offline",
    show_default=True,
    metavar="NAME",
    help="A Hugging Face folder or name of a causal LM; offline: a small one that is "
    "self-pretrained here on the posts; random: the same without.",
)
@options.preset
@_languages
@_seed
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Any field, e.g. --set qlora.lr=1e-4, --set augment.rate=0.1, --set qlora.quantise=false.",
)
@click.option(
    "--allow-pickle",
    is_flag=True,
    help="Take a base whose weights are there only as pickle, which can run any code.",
)
@options.store
@options.device
@options.checkpoint_seconds
@options.recompute
@click.pass_context
def train(
    ctx,
    folder,
    out,
    subtask,
    base,
    preset,
    languages,
    seed,
    changes,
    allow_pickle,
    store,
    device,
    checkpoint_seconds,
    recompute,
) -> None:
    """Finetune a base on the posts of FOLDER with adapters and copies; --out gets the model.

    With a named base the settings are the published ones, with the small one those of the preset.
    The test copies of its table are of the dev or test posts if these have labels, else of those
    that are held out. Ctrl-C stops it with a checkpoint, from which the same command goes on.
    """
    from sptlib.cli_train import Bar, one_voice
    from sptlib.execute import Where, compute
    from sptlib.export import run_store
    from sptlib.polar import data
    from sptlib.signals import stopping

    with stopping() as stop, one_voice(ctx, stop), Bar() as bar, data.at(folder):
        run = _run(folder, preset, subtask, base, languages, seed, changes, allow_pickle)
        from sptlib.polar import folder as models  # slow, and what is above may be refused

        models.check(out, run.base.model)
        place = run_store(store)
        where = Where(device, 1, checkpoint_seconds, progress=bar, stop=stop)
        entry = compute(run, place, where, recompute)
        bar.close()
        models.write(entry, place, out)
        _report(entry.result)
        click.echo(f"the model is in {out}")


def _run(folder, preset, subtask, base, languages, seed, changes, allow_pickle):
    """The configuration that the options describe."""
    from sptlib.cli_train import assignment
    from sptlib.config import override
    from sptlib.polar import data, labels, presets

    if Path(base).expanduser().is_dir():
        base = str(Path(base).expanduser().resolve())  # so that `predict` finds it from elsewhere
    run = presets.get(preset, subtask, presets.known_base(base), files=True)
    wanted: dict = {"seed": seed, "task.languages": list(_codes(languages))}
    if allow_pickle:
        wanted["base.allow_pickle"] = True
    run = override(run, wanted | dict(map(assignment, changes)))
    posts = data.load(run.task, run.seed)  # whatever is wrong with them is refused at once
    asked = list(labels.subtask(run.task.subtask).labels)
    kinds = posts.train[asked].to_numpy(int)
    if not kinds.any() or (len(asked) == 1 and kinds.all()):
        raise DataError(
            folder, f"all {len(kinds)} training posts are {int(kinds.any())}: nothing to learn"
        )
    return run


def _report(result: dict) -> None:
    from sptlib.polar.augment import KINDS

    for note in result["notes"]:
        click.echo(note)
    click.echo(
        f"{result['n_train']} posts and {result['n_copies']} copies; best at step "
        f"{result['best_step']} of {result['steps']}"
    )
    click.echo(f"macro-F1 of {result['n_test']} posts, mean over languages:")
    click.echo(f"{'':12} at 0.5  tuned")
    for form in ("clean", *KINDS):
        score = f"macro_f1_{form}"
        click.echo(f"{form:12} {result[score]:6.3f} {result[f'{score}_tuned']:6.3f}")


@polar.command()
@click.argument("model", type=click.Path(path_type=Path))
@_folder
@_out("Where subtask_N/pred_LANG.csv go.")
@_split
@_languages
@click.option("--tuned", is_flag=True, help="At the tuned thresholds instead of 0.5.")
@options.device
def predict(model, folder, out, split, languages, tuned, device) -> None:
    """Predict the labels of a split with the MODEL of `train`, in the layout of the submission."""
    from sptlib.execute import Where
    from sptlib.polar import data, metrics, predictions
    from sptlib.polar import folder as models

    _check_split(split)
    _check_folder(out)
    run, result = models.read(model)
    posts = data.read(folder, split, run.task.subtask, _codes(languages), labelled=False)
    for note in posts.notes:
        click.echo(note)
    ready = models.load(model, Where(device).torch_device())
    n_cut = ready.n_cut(posts.table)
    if n_cut:
        click.echo(f"{n_cut} of {len(posts.table)} posts were cut to {run.qlora.max_length} tokens")
    chance = ready.probabilities(posts.table)
    thresholds = result["thresholds"] if tuned else metrics.THRESHOLD
    given = metrics.given(chance, thresholds)
    paths = predictions.write(posts.table, given, ready.asked, out)
    click.echo(f"{len(posts.table)} posts in {len(paths)} files in {paths[0].parent}")


@polar.command()
@click.argument("predicted", type=click.Path(path_type=Path), metavar="PREDICTIONS")
@_folder
@_split
@click.option("--subtask", type=click.IntRange(1, 3), default=None, help="Default: all there are.")
@_languages
def evaluate(predicted, folder, split, subtask, languages) -> None:
    """Macro-F1 by language, and its mean, of PREDICTIONS against the labels of FOLDER."""
    from sptlib.polar import labels, predictions

    _check_split(split)
    for number in [subtask] if subtask else predictions.subtasks(predicted):
        asked = labels.subtask(number)
        found = predictions.score(predicted, folder, split, asked, _codes(languages))
        click.echo(f"subtask {number} ({asked.name}), {split}")
        for note in found.notes:
            click.echo(note)
        click.echo(found.table.to_string(float_format="{:.4f}".format))
        click.echo(f"average over {len(found.table)} languages: {found.average:.4f}")


def _check_split(name: str) -> None:
    from sptlib.errors import unknown
    from sptlib.polar.data import SPLITS

    if name not in SPLITS:
        raise unknown("split", name, SPLITS)


def _words(text: str, option: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",")) if text.strip() else ()
    if not all(words):
        raise ConfigError(f"{option} takes names between commas, found {text!r}")
    return words


def _codes(text: str) -> tuple[str, ...]:
    """Codes of languages between commas; raises `ConfigError` for one that the task lacks."""
    from sptlib.errors import unknown
    from sptlib.polar.labels import LANGUAGES

    names = tuple(dict.fromkeys(_words(text, "--languages")))
    for name in names:
        if name not in LANGUAGES:
            raise unknown("language", name, LANGUAGES)
    return names
