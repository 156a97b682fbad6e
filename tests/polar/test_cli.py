"""`sptlib polar` as it is typed: from posts to scores, and what is refused."""

import csv
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from sptlib.cli import main
from sptlib.notebooks import root
from sptlib.polar import data, labels, predictions
from sptlib.polar.labels import SUBTASKS

SAMPLES = root().parent / "shared" / "samples" / "polar"


def sptlib(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["polar", *map(str, words)])
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture(scope="module")
def posts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("posts") / "polar"
    sptlib("make", folder, "--n-train", 16, "--n-dev", 6, "--languages", "eng,rus,zho")
    return folder


@pytest.fixture(scope="module")
def models(posts, tmp_path_factory):
    """A model of subtask 1 from a pretrained base, one of subtask 3 from a random one."""
    place = tmp_path_factory.mktemp("models")
    for number, base in ((1, "offline"), (3, "random")):
        told = sptlib(
            "train", posts, "--out", place / str(number), "--subtask", number, "--base", base,
            "--preset", "smoke", "--store", place / "store", "--device", "cpu",
        )  # fmt: skip
        assert f"the model is in {place / str(number)}" in told
        assert ("rus (Russian) has no manifestation labels" in told) == (number == 3)
    return place


def test_from_posts_to_scores(posts, models, tmp_path):
    for number in (1, 3):
        told = sptlib("predict", models / str(number), posts, "--out", tmp_path)
        names = ["eng", "rus", "zho"] if number == 1 else ["eng", "zho"]
        assert f"{6 * len(names)} posts in {len(names)} files" in told
        for name in names:
            with open(posts / "dev" / f"{name}.csv", newline="") as file:
                ids = [row["id"] for row in csv.DictReader(file)]
            path = tmp_path / f"subtask_{number}" / f"pred_{name}.csv"
            table = pd.read_csv(path)
            assert table["id"].tolist() == ids, "each post once, in the order of the file"
            assert list(table.columns) == ["id", *SUBTASKS[number].labels]
            assert table.iloc[:, 1:].isin([0, 1]).all(axis=None)
    told = sptlib("evaluate", tmp_path, posts)
    run = json.loads((models / "1" / "run.json").read_text())
    expected = run["result"]["macro_f1_clean"]  # its test posts are the dev posts
    assert f"average over 3 languages: {expected:.4f}" in told
    assert "average over 2 languages" in told
    tuned = tmp_path / "tuned"
    sptlib("predict", models / "1", posts, "--out", tuned, "--tuned")
    told = sptlib("evaluate", tuned, posts)
    assert f"{run['result']['macro_f1_clean_tuned']:.4f}" in told


def test_a_second_training_is_looked_up(posts, models, tmp_path):
    for out in (models / "1", tmp_path / "copy"):
        sptlib("train", posts, "--out", out, "--preset", "smoke", "--store", models / "store")
    first, copy = (json.loads((p / "run.json").read_text()) for p in (models / "1", out))
    assert first == copy
    assert sorted(p.name for p in copy_files(out)) == sorted(
        p.name for p in copy_files(models / "1")
    )


def copy_files(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file()]


def test_stats_and_picture(posts, tmp_path):
    told = sptlib("stats", posts, "--plot", tmp_path / "shares.png")
    table = data.read(posts, "train", 1, ("eng",)).table
    (line,) = [x for x in told.splitlines() if x.startswith("train eng")]
    assert f"{table['polarization'].mean():.2f}" in line
    (line,) = [x for x in told.splitlines() if x.split()[0] == "rus"][:1]
    assert "–" in line
    assert (tmp_path / "shares.png").stat().st_size > 5000
    assert "ends in .png" in sptlib("stats", posts, "--plot", tmp_path / "a.txt", code=1)


def test_augment_writes_the_layout(posts, tmp_path):
    told = sptlib("augment", posts, "--out", tmp_path / "more", "--rate", "0.5")
    read = data.read(tmp_path / "more", "train", 1).table
    assert f"{len(read)} posts, 48 of them original" in told
    assert "scripts without case, which lower and upper leave alone" in told
    assert "is there already" in sptlib("augment", posts, "--out", tmp_path / "more", code=1)
    told = sptlib("augment", posts, "--out", tmp_path / "x", "--kinds", "uper", code=1)
    assert "did you mean 'upper'" in told
    told = sptlib("augment", posts, "--out", tmp_path / "y", "--kinds", "lower", "--no-joiners")
    assert "homoglyph" not in told.replace("homoglyph: 0 drawn, 0 came out unchanged, 0 added", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stats", "nowhere"], "no such folder"),
        (["train", "POSTS", "--out", "m", "--languages", "english"], "did you mean 'eng'"),
        (["train", "POSTS", "--out", "m", "--languages", "deu"], "unknown language of"),
        (["train", "POSTS", "--out", "m", "--base", "ofline"], "did you mean 'offline'"),
        (["train", "POSTS", "--out", "m", "--base", "./nowhere"], "no such folder"),
        (["train", "POSTS", "--out", "m", "--set", "qlora.rnk=3"], "did you mean 'qlora.rank'"),
        (["train", "POSTS", "--out", "m", "--set", "qlora.rank=0"], "qlora.rank"),
        (["train", "POSTS", "--out", "POSTS"], "holds something that is no such model"),
        (["predict", "POSTS", "POSTS", "--out", "p"], "no run.json in it"),
        (["evaluate", "POSTS", "POSTS"], "no predictions in it"),
        (["make", "POSTS"], "not an empty folder"),
        (["train", "POSTS", "--out", "file/x"], "cannot be made"),
        (["train", "POSTS", "--out", ".", "--base", "./base"], "will be replaced"),
        (["predict", "POSTS", "POSTS", "--out", "file"], "is no folder"),
        (["augment", "POSTS", "--out", "file"], "is no folder"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(posts, models, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    if "./base" in words:
        (tmp_path / "run.json").write_text((models / "1" / "run.json").read_text())
        (tmp_path / "base").mkdir()
    told = sptlib(*(str(posts) if w == "POSTS" else w for w in words), code=1)
    assert message in told
    assert len(told.splitlines()) == 1


def test_predictions_of_other_posts_are_refused(posts, tmp_path):
    asked = labels.subtask(1)
    dev = data.read(posts, "dev", 1, ("eng",)).table
    predictions.write(dev, dev[["polarization"]].to_numpy(int), asked, tmp_path)
    assert predictions.score(tmp_path, posts, "dev", asked, ("eng",)).average == 1.0
    path = tmp_path / "subtask_1" / "pred_eng.csv"
    whole = path.read_text().splitlines()
    for content, message in (
        (whole[:-1], "1 posts have no prediction, the first is"),
        ([*whole, "other,1"], "0 posts have no prediction, 1 ids are no posts"),
        ([*whole, whole[-1]], "is there twice"),
        ([*whole[:-1], whole[-1][:-1] + "2"], "polarization is 0 or 1"),
        (["id,label", *whole[1:]], "the columns should be"),
        ([], "the file is empty"),
    ):
        path.write_text("\n".join([*content, ""]), newline="")
        told = sptlib("evaluate", tmp_path, posts, "--languages", "eng,eng", code=1)
        assert message in told
    path.unlink()
    (tmp_path / "subtask_1" / "pred_rus.csv").write_text("id,polarization\n")
    told = sptlib("evaluate", tmp_path, posts, "--languages", "eng", code=1)
    assert "there is no such file" in told


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the samples are not here")
def test_real_posts(models, tmp_path):
    told = sptlib("predict", models / "3", SAMPLES, "--out", tmp_path)
    assert "ita (Italian) has no manifestation labels: left out of subtask 3" in told
    assert "699 posts in 4 files" in told
    assert "1752 posts in 6 languages" in sptlib("stats", SAMPLES)


def test_a_damaged_model_is_refused(posts, models, tmp_path):
    def predict(change, message, name="copy"):
        model = tmp_path / name
        shutil.copytree(models / "1", model)
        change(model)
        told = sptlib("predict", model, posts, "--out", tmp_path / "p", code=1)
        assert message in told
        assert len(told.splitlines()) == 1
        shutil.rmtree(model)

    def cut(path):
        path.write_bytes(path.read_bytes()[:100])

    predict(lambda m: cut(m / "adapter" / "adapter_model.safetensors"), "do not fit")
    predict(lambda m: cut(m / "base" / "model.safetensors"), "cannot be loaded")
    predict(lambda m: shutil.rmtree(m / "base"), "the model is not whole")
    predict(lambda m: (m / "run.json").write_text("{}"), "is not what `sptlib polar train`")
    predict(lambda m: (m / "base" / "tokenizer.json").unlink(), "cannot be opened")


def test_a_base_that_was_pruned_is_made_again(posts, models, tmp_path):
    place = tmp_path / "store"
    shutil.copytree(models / "store", place)
    for folder in place.iterdir():
        config = folder / "config.json"
        if config.is_file() and json.loads(config.read_text())["kind"] == "polar_base":
            shutil.rmtree(folder)
    out = tmp_path / "again"
    sptlib("train", posts, "--out", out, "--preset", "smoke", "--store", place, "--device", "cpu")
    weights = [(p / "base" / "model.safetensors").read_bytes() for p in (out, models / "1")]
    assert weights[0] == weights[1]


def test_a_training_that_explodes_says_so(posts, tmp_path):
    told = sptlib(
        "train", posts, "--out", tmp_path / "m", "--preset", "smoke", "--base", "random",
        "--set", "qlora.lr=1e30", "--store", tmp_path / "store", code=1,
    )  # fmt: skip
    assert "finetune diverged" in told
    same = tmp_path / "same"
    made = data.read(posts, "train", 1).table.assign(polarization=0)
    data.write(made, same, "train")
    told = sptlib("train", same, "--out", tmp_path / "m", code=1)
    assert "training posts are 0: nothing to learn" in told
