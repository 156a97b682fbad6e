"""The tasks of the Long Range Arena: splits, lengths, labels, and the files they are read from."""

import gzip
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.torch import save_file
from scipy import stats

from sptlib import presets, tasks
from sptlib.data import cache
from sptlib.errors import ConfigError, DataError
from sptlib.formats import aan, imdb, listops, pathfinder
from sptlib.generators import listops as expressions
from sptlib.generators import pathfinder as scenes
from sptlib.seeding import generator
from sptlib.tasks import (
    ImageConfig,
    ListOpsConfig,
    PathfinderConfig,
    RetrievalConfig,
    Split,
    TextConfig,
    characters,
    files,
)
from sptlib.tasks.text import turned, windows

RECIPES = [r for r in presets.RECIPES if r != "neighbor"]
SPLITS = ("unlabelled", "train", "val", "test")
REVIEWS = {"source": "reviews", "alphabet": "simple"}


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty data folder."""
    monkeypatch.setenv("SPTLIB_DATA", str(tmp_path / "data"))
    tasks.load.cache_clear()
    yield tmp_path / "data"
    tasks.load.cache_clear()


def rows(split: Split) -> list[bytes]:
    """Each sequence without its padding."""
    flat = split.sequences()
    length = flat.length.tolist() if flat.length is not None else [flat.x.shape[1]] * len(flat)
    return [x[:n].numpy().tobytes() for x, n in zip(flat.x, length, strict=True)]


# --- what all have in common --------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
def test_shapes_types_and_ranges(recipe):
    task = presets.smoke(recipe).task
    data = tasks.load(task, 0)
    assert data.pairs == recipe.startswith("retrieval")
    assert len(data.unlabelled) == task.n_inputs
    assert data.unlabelled.x.dim() == 2
    for name, n in (("train", task.n_labels or task.n_train), ("val", task.n_val),
                    ("test", task.n_test)):  # fmt: skip
        split = getattr(data, name)
        assert split.x.shape == ((n, 2, data.max_len) if data.pairs else (n, data.max_len))
        assert (split.x.dtype, split.y.dtype) == (torch.uint8, torch.int64)
        assert set(split.y.tolist()) <= set(range(data.n_classes))
        assert int(split.x.max()) < data.vocab_size
        if split.length is not None:
            assert split.length.shape == split.x.shape[:-1]
            assert 1 <= int(split.length.min()) <= int(split.length.max()) <= data.max_len
            behind = torch.arange(data.max_len) >= split.length[..., None]
            assert not split.x[behind].any(), "padding is zero"
    assert len(data.classes) == data.n_classes


@pytest.mark.parametrize("recipe", RECIPES)
def test_same_seed_same_data_also_without_the_cache(recipe, home):
    task = presets.smoke(recipe).task
    first = tasks.load(task, 3)
    again = tasks.load.__wrapped__(task, 3)  # from the files of the cache
    for file in home.rglob("*.safetensors"):
        file.unlink()
    anew = tasks.load.__wrapped__(task, 3)
    assert first.fingerprint == again.fingerprint == anew.fingerprint
    assert tasks.load(task, 4).fingerprint != first.fingerprint


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_sequence_is_in_two_splits(recipe):
    data = tasks.load(presets.smoke(recipe).task, 0)
    found = {name: set(rows(getattr(data, name))) for name in SPLITS}
    if recipe == "image":
        pytest.skip("two of the digits are equal images; test_tasks.py numbers them")
    for a, b in (("unlabelled", "val"), ("unlabelled", "test"), ("val", "test")):
        assert not found[a] & found[b], (a, b)
    assert found["train"] <= found["unlabelled"]


@pytest.mark.parametrize("recipe", ["listops", "pathfinder", "text", "text:direction", "retrieval"])
def test_more_training_data_do_not_change_validation_and_test(recipe):
    task = presets.smoke(recipe).task
    base, other = (tasks.load(replace(task, n_train=n), 0) for n in (40, 64))
    for name in ("val", "test"):
        assert torch.equal(getattr(base, name).x, getattr(other, name).x)
        assert torch.equal(getattr(base, name).y, getattr(other, name).y)


@pytest.mark.parametrize("recipe", ["text", "text:direction", "retrieval"])
def test_real_data_are_fixed_but_their_training_subsets_vary(recipe):
    a, b = (tasks.load(presets.smoke(recipe).task, seed) for seed in (0, 1))
    for name in ("val", "test"):
        assert torch.equal(getattr(a, name).x, getattr(b, name).x)
        assert torch.equal(getattr(a, name).y, getattr(b, name).y)
    assert not torch.equal(a.train.x, b.train.x)


@pytest.mark.parametrize("task", [
    ListOpsConfig, PathfinderConfig, TextConfig, RetrievalConfig,
])  # fmt: skip
def test_fresh_data_are_refused(task):
    with pytest.raises(ValidationError, match="fresh=True"):
        task(fresh=True)


def test_splits_are_trimmed_to_their_longest_sequence():
    split = Split(torch.arange(12).view(2, 6), torch.zeros(2), torch.tensor([2, 4]))
    assert split.trimmed().x.shape == (2, 4)
    assert split.take(torch.tensor([0])).trimmed().x.tolist() == [[0, 1]]
    whole = Split(split.x, split.y)
    assert whole.trimmed() is whole
    pairs = Split(split.x.view(1, 2, 6), split.y[:1], split.length.view(1, 2))
    assert pairs.trimmed().x.shape == (1, 2, 4)
    assert pairs.sequences().x.tolist() == split.x.tolist()
    assert pairs.sequences().length.tolist() == [2, 4]


def test_what_the_tasks_load_is_pinned():
    """If this fails, other bytes are read than before: raise `VERSION` of `sptlib.data.cache`.

    Generated data have a `VERSION` of their own in `sptlib.generators`.
    """
    assert (cache.VERSION, expressions.VERSION, scenes.VERSION) == (1, 2, 1)
    found = {r: tasks.load(presets.smoke(r).task, 0).fingerprint[:12] for r in RECIPES}
    assert found == PINNED


# --- listops ------------------------------------------------------------------------------------

SMALL = {"n_train": 30, "n_val": 10, "n_test": 10}
SHALLOW = {"max_depth": 4, "max_args": 4, "min_length": 3, "max_length": 30}


def test_listops_labels_are_the_values_and_expressions_are_distinct():
    data = tasks.load(ListOpsConfig(**SMALL, **SHALLOW), 0)
    seen = []
    for name in ("train", "val", "test"):
        split = getattr(data, name)
        for x, n, y in zip(split.x.numpy(), split.length, split.y, strict=True):
            assert listops.evaluate(x[:n]) == y
            assert 3 < n < 30
            seen.append(x[:n].tobytes())
    assert len(set(seen)) == 50
    assert data.max_len == 29


def test_listops_from_files(home):
    grammar = expressions.Grammar(4, 4, 3, 30)
    for split, n in (("train", 30), ("val", 10), ("test", 10)):
        made = expressions.generate(grammar, n, "t", split)
        listops.write(home / "listops" / f"basic_{split}.tsv", made)
    task = ListOpsConfig(**SMALL, source="files", max_len=64)
    data = tasks.load(task, 0)
    assert (data.max_len, data.notes) == (64, ())
    assert data.test.y.tolist() == made.targets.tolist()
    cut = tasks.load(replace(task, max_len=8), 0)
    longer = sum(int((getattr(data, s).length > 8).sum()) for s in ("train", "val", "test"))
    assert cut.notes == (f"{longer} of 50 sequences were cut to 8 positions",)
    assert int(cut.train.length.max()) == 8
    with pytest.raises(ConfigError, match="31 wanted, but the train split of listops has 30"):
        tasks.load(replace(task, n_train=31), 0)
    path = home / "listops" / "basic_test.tsv"  # a changed file is read anew
    path.write_bytes(path.read_bytes().replace(b"[MAX", b"[MIN", 1) + b"7\t7\r\n")
    tasks.load.cache_clear()
    assert len(tasks.load(replace(task, n_test=11), 0).test) == 11


def test_missing_files_name_the_command(home):
    with pytest.raises(DataError, match="sptlib data make listops"):
        tasks.load(ListOpsConfig(source="files"), 0)
    with pytest.raises(DataError, match="sptlib data get imdb"):
        tasks.load(TextConfig(), 0)
    with pytest.raises(DataError, match="sptlib data get lra"):
        tasks.load(RetrievalConfig(), 0)
    with pytest.raises(DataError, match="sptlib data get cifar10"):
        tasks.load(ImageConfig(source="cifar10"), 0)


@pytest.mark.parametrize(("changes", "message"), [
    ({"min_length": 29}, "no length lies between"),
    ({"max_len": 20}, "would cut expressions of up to 29 symbols"),
])  # fmt: skip
def test_impossible_listops_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        ListOpsConfig(**{**SHALLOW, **changes, "max_length": 30})


# --- image --------------------------------------------------------------------------------------


def test_mnist_in_any_size_and_depth():
    sizes = {"n_train": 100, "n_val": 50, "n_test": 50}
    whole = tasks.load(ImageConfig(source="mnist", **sizes), 0)
    assert (whole.max_len, whole.vocab_size, int(whole.train.x.max())) == (784, 256, 255)
    small = tasks.load(ImageConfig(source="mnist", **sizes, side=14, levels=8), 0)
    assert (small.max_len, small.vocab_size, int(small.train.x.max())) == (196, 8, 7)
    blocks = whole.test.x.view(50, 14, 2, 14, 2).double().mean((2, 4)).flatten(1)
    assert int((small.test.x - (blocks + 0.5).floor() // 32).abs().max()) == 0
    assert torch.equal(small.test.y, whole.test.y)
    pixels = tasks.load(ImageConfig(source="mnist", **sizes, levels=8, tokenised=False), 0)
    assert (pixels.kind, pixels.scale) == ("pixels", 7.0)


def test_cifar10_from_the_official_layout(home):
    rng = np.random.default_rng(0)
    folder = home / "cifar10" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    raw = {}
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        data = rng.integers(0, 256, (12, 3072), dtype=np.uint8)
        raw[name] = {b"data": data, b"labels": (np.arange(12) % 10).tolist()}
        (folder / name).write_bytes(pickle.dumps(raw[name], protocol=2))
    task = ImageConfig(source="cifar10", n_train=40, n_val=20, n_test=12, tokenised=False)
    data = tasks.load(task, 0)
    assert (data.max_len, data.scale, data.classes[0]) == (1024, 255.0, "airplane")
    planes = raw["test_batch"][b"data"].reshape(12, 3, 1024).astype(float)
    grey = 0.2989 * planes[:, 0] + 0.587 * planes[:, 1] + 0.114 * planes[:, 2]
    assert np.abs(data.test.x.numpy() - grey).max() <= 0.51
    assert data.test.y.tolist() == raw["test_batch"][b"labels"]
    assert not set(rows(data.train)) & set(rows(data.val))


@pytest.mark.parametrize(("changes", "message"), [
    ({"side": 5}, "side=5 does not divide digits's 8"),
    ({"levels": 18}, "levels=18, but digits has 2 to 17"),
    ({"levels": 1}, "levels=1"),
    ({"n_train": 1500}, "but digits has 1797"),
])  # fmt: skip
def test_impossible_images_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        ImageConfig(**changes)


def test_too_many_of_a_real_set_are_refused():
    with pytest.raises(ConfigError, match="4900 wanted, but the training part of mnist has 4800"):
        tasks.load(ImageConfig(source="mnist", n_train=4900, n_val=100, n_test=100), 0)
    with pytest.raises(ConfigError, match="leave nothing of mnist, which has 5000"):
        tasks.load(ImageConfig(source="mnist", n_val=3000, n_test=2000), 0)


# --- pathfinder ---------------------------------------------------------------------------------


def test_pathfinder_from_files_is_what_was_written(home):
    drawing = scenes.drawing(32, 6)
    made = scenes.draw(drawing, 60, "t")
    place = home / "pathfinder" / "pathfinder32" / "curv_baseline"
    pathfinder.write(place, made.images, made.labels, drawing, batch_size=25)
    (place / "imgs" / "1" / "sample_3.png").write_bytes(b"broken")
    task = PathfinderConfig(
        source="files", contour_length=6, n_train=39, n_val=10, n_test=10, levels=4
    )
    data = tasks.load(task, 0)
    assert "sample_3.png" in data.notes[0]
    with pytest.raises(ConfigError, match="40 wanted, but the training part of pathfinder32/curv_"):
        tasks.load(replace(task, n_train=40), 0)
    images = {row.tobytes() for row in made.images // 64}
    assert {*rows(data.train), *rows(data.val), *rows(data.test)} <= images
    assert (data.vocab_size, data.max_len) == (4, 1024)
    # a mended image counts again, although its folder looks as before
    Image.fromarray(made.images[28].reshape(32, 32)).save(place / "imgs" / "1" / "sample_3.png")
    assert len(tasks.load(replace(task, n_train=40), 0).train) == 40
    place.parent.rename(home / "pathfinder" / "pathfinder128")
    with pytest.raises(DataError, match="holds images of 32×32 pixels, expected 128×128"):
        tasks.load(replace(task, side=128), 0)


def test_the_cut_of_official_files_depends_on_no_path(tmp_path, monkeypatch):
    found = {}
    for home in ("a", "b"):
        for contour in (6, 9):
            place = tmp_path / home / "pathfinder" / "pathfinder32" / pathfinder.difficulty(contour)
            drawing = scenes.drawing(32, contour)
            made = scenes.draw(drawing, 40, contour)
            pathfinder.write(place, made.images, made.labels, drawing)
            for file in [*place.rglob("*"), place]:
                os.utime(file, (1e9, 1e9))  # an archive may give all files one time
        monkeypatch.setenv("SPTLIB_DATA", str(tmp_path / home))
        for contour in (6, 9):
            task = PathfinderConfig(source="files", contour_length=contour, n_train=20, n_val=10,
                                    n_test=10)  # fmt: skip
            found[home, contour] = tasks.load.__wrapped__(task, 0).fingerprint
    assert found["a", 6] == found["b", 6]
    assert found["a", 9] == found["b", 9]
    assert found["a", 6] != found["a", 9]


def test_pathfinder_is_balanced_and_refuses_what_cannot_be_drawn():
    data = tasks.load(presets.smoke("pathfinder").task, 0)
    assert torch.bincount(data.train.y).tolist() == [32, 32]
    with pytest.raises(ValidationError, match="side"):
        PathfinderConfig(side=20)
    with pytest.raises(ValidationError, match="contour_length=14 does not fit into 16×16"):
        PathfinderConfig(side=16)


# --- text ---------------------------------------------------------------------------------------


def test_bytes_and_the_small_alphabet():
    text = b"It's <br /><br />10/10 --  G\xc3\xb6d!\n"
    assert characters.numbers(text, "bytes") == text
    simple = "".join(characters.SIMPLE[n] for n in characters.numbers(text, "simple"))
    assert simple == "it's ##/## -- g~~d!"
    assert len(characters.symbols("bytes")) == 256
    x, length = characters.padded([b"abc", b"", b"abcdef"], 4)
    assert x.tolist() == [[97, 98, 99, 0], [0, 0, 0, 0], [97, 98, 99, 100]]
    assert length.tolist() == [3, 1, 4]


def test_direction_turns_exactly_half_of_the_texts():
    x = torch.arange(1, 41, dtype=torch.uint8).view(8, 5)
    length = torch.tensor([5, 4, 3, 2, 1, 5, 5, 5])
    x[torch.arange(5) >= length[:, None]] = 0
    split = turned(Split(x, torch.zeros(8), length), generator("t"))
    assert int(split.y.sum()) == 4
    for before, after, y, n in zip(x, split.x, split.y, length, strict=True):
        expected = before[:n].flip(0) if y else before[:n]
        assert torch.equal(after[:n], expected)
        assert not after[n:].any()


def test_windows_come_from_anywhere():
    texts = [bytes(range(100))] * 400
    found = windows(texts, 10, generator("t"))
    starts = {piece[0] for piece in found}
    assert all(piece == bytes(range(piece[0], piece[0] + 10)) for piece in found)
    assert (min(starts), max(starts)) == (0, 90)
    assert len(starts) > 80
    assert windows([b"abc"], 10, generator("t")) == [b"abc"]


def test_direction_labels_cannot_be_read_off_counts_but_off_pairs():
    task = TextConfig(**REVIEWS, label="direction", max_len=64, n_train=600, n_val=50, n_test=600)
    data = tasks.load(task, 0)
    letters = [torch.bincount(data.train.x[data.train.y == y].flatten().long(), minlength=45)
               for y in (0, 1)]
    share = [n / n.sum() for n in letters]
    assert float((share[0] - share[1]).abs().max()) < 0.01
    the = bytes(characters.SIMPLE.index(c) for c in "the ")
    forwards = sum(the in row for row, y in zip(rows(data.test), data.test.y, strict=True) if not y)
    backwards = sum(the in row for row, y in zip(rows(data.test), data.test.y, strict=True) if y)
    assert forwards > 100
    assert backwards == 0


def test_sentiment_labels_are_those_of_the_package():
    reviews = imdb.read_package()
    label = dict(zip(reviews.texts, reviews.labels.tolist(), strict=True))
    task = TextConfig(source="reviews", max_len=9999, n_train=50, n_val=10, n_test=20)
    data = tasks.load(task, 0)
    for name in ("train", "val", "test"):
        split = getattr(data, name)
        for row, y in zip(rows(split), split.y.tolist(), strict=True):
            full = row if row in label else next(t for t in label if t.startswith(row))
            assert label[full] == y


def official_imdb(folder: Path) -> None:
    for split in ("train", "test"):
        for kind, rating in (("pos", 9), ("neg", 2)):
            place = folder / "aclImdb" / split / kind
            place.mkdir(parents=True)
            for i in range(10):
                (place / f"{i}_{rating}.txt").write_text(f"{split} {kind} number {i}")


def test_imdb_from_the_official_folder(home):
    official_imdb(home / "imdb")
    data = tasks.load(TextConfig(n_train=15, n_val=5, n_test=20, max_len=12), 0)
    assert all(row.startswith(b"test ") for row in rows(data.test))
    assert all(row.startswith(b"train ") for row in [*rows(data.train), *rows(data.val)])
    for name in ("train", "val", "test"):
        split = getattr(data, name)
        kinds = [b" pos" in row for row in rows(split)]
        assert kinds == [bool(y) for y in split.y]
    assert data.notes == ("40 of 40 sequences were cut to 12 positions",)


# --- retrieval ----------------------------------------------------------------------------------


def test_halves_belong_together_or_not():
    reviews = [characters.numbers(t, "simple") for t in imdb.read_package().texts]
    together = {(t[: len(t) // 2][:40], t[len(t) // 2 :][:40]) for t in reviews}
    task = RetrievalConfig(source="halves", alphabet="simple", max_len=40, n_train=200, n_val=20,
                           n_test=100)  # fmt: skip
    data = tasks.load(task, 0)
    for name in ("train", "test"):
        split = getattr(data, name)
        found = rows(split)
        related = [(a, b) in together for a, b in zip(found[0::2], found[1::2], strict=True)]
        assert related == [bool(y) for y in split.y], name
        assert int(split.y.sum()) == len(split) // 2


def test_lengths_of_halves_tell_nothing():
    """Uncut, so that the halves of one review would be given away by their equal lengths."""
    task = RetrievalConfig(source="halves", alphabet="simple", max_len=4000, n_train=4000, n_val=20,
                           n_test=1000)  # fmt: skip
    split = tasks.load(task, 0).train
    assert torch.equal(split.length[:, 0], split.length[:, 1])
    related = split.y == 1
    pvalue = stats.ks_2samp(split.length[related, 0], split.length[~related, 0]).pvalue
    assert pvalue > 0.01
    for i in (5, 500):
        assert not split.x[i, :, int(split.length[i, 0]) :].any()


def test_too_few_halves_are_refused():
    with pytest.raises(ConfigError, match="at least 4 pairs"):
        tasks.load(RetrievalConfig(source="halves", n_train=9, n_val=3, n_test=9), 0)


def test_aan_from_the_official_layout(home):
    for split, n in (("train", 12), ("eval", 6), ("test", 6)):
        texts = [[f"{split} {i} {w}".encode() for i in range(n)] for w in ("one", "other")]
        pairs = aan.Pairs(np.arange(n, dtype=np.uint8) % 2, ["A"] * n, ["B"] * n, *texts)
        aan.write(home / "aan" / f"new_aan_pairs.{split}.tsv", pairs)
    data = tasks.load(RetrievalConfig(n_train=12, n_val=6, n_test=6), 0)
    assert data.test.y.tolist() == [0, 1] * 3
    assert rows(data.test)[:2] == [b"test 0 one", b"test 0 other"]
    assert len(data.unlabelled) == 24
    fewer = tasks.load(RetrievalConfig(n_train=4, n_val=6, n_test=6), 0)
    assert set(rows(fewer.train)) < set(rows(data.train))


# --- the cache ----------------------------------------------------------------------------------


def test_the_cache_serves_the_same_bytes_and_makes_damaged_files_anew(home):
    calls = []

    def make():
        calls.append(1)
        return {"x": torch.arange(10, dtype=torch.uint8)}, {"cut": 2}

    first = cache.cached("t", {"a": 1}, make)
    second = cache.cached("t", {"a": 1}, make)
    assert (len(calls), second.notes, second.digest) == (1, {"cut": 2}, first.digest)
    assert torch.equal(first["x"], second["x"])
    cache.cached("t", {"a": 2}, make)
    assert len(calls) == 2
    del first, second
    first = cache.cached("t", {"a": 1}, make)
    path = first.path
    del first
    path.write_bytes(b"damaged")
    assert torch.equal(cache.cached("t", {"a": 1}, make)["x"], torch.arange(10))
    assert len(calls) == 3


@pytest.mark.parametrize("change", ["bytes", "metadata", "parts"])
def test_altered_cache_files_are_made_anew(home, change):
    calls = []

    def make():
        calls.append(1)
        return {"x": torch.arange(10, dtype=torch.uint8)}, {"cut": 0}

    path = cache.cached("t", {}, make).path
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    x = torch.arange(10, dtype=torch.uint8) + (change == "bytes")
    if change == "parts":
        metadata["parts"] = "others"
    save_file({"x": x}, path, metadata={} if change == "metadata" else metadata)
    assert torch.equal(cache.cached("t", {}, make)["x"], torch.arange(10))
    assert len(calls) == 2


def test_a_data_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPTLIB_DATA", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot be written .*by \$SPTLIB_DATA"):
        cache.cached("t", {}, lambda: ({"x": torch.zeros(1)}, {}))


def test_a_maker_that_fails_leaves_nothing(home):
    def fail():
        raise DataError("x.tsv", "bad", line=3)

    with pytest.raises(DataError, match=r"x\.tsv:3: bad"):
        cache.cached("t", {}, fail)
    assert [p.suffix for p in (home / ".cache").iterdir()] == [".lock"]


def test_a_digest_stands_for_its_bytes(home):
    make = lambda: ({"x": torch.zeros(4, 2, dtype=torch.uint8), "y": torch.zeros(4)}, {})  # noqa: E731
    split = files.as_split(cache.cached("t", {}, make))
    assert split.digest == cache.digest({"x": split.x, "y": split.y})
    assert split.take(slice(0, 2)).digest == ""
    assert split.to("cpu").digest == split.digest


# --- the samples --------------------------------------------------------------------------------

SAMPLES = Path(__file__).parents[1].parent / "shared" / "samples"


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="no samples here")
def test_every_sample_loads_as_a_task(home):
    home.mkdir()
    for name, source in (("listops", "listops-1000"), ("aan", "aan"), ("imdb", "aclImdb_sample")):
        (home / name).symlink_to(SAMPLES / source)
    (home / "cifar10").mkdir()
    (home / "cifar10" / "cifar-10-batches-py").symlink_to(SAMPLES / "cifar-10-batches-py")
    (home / "pathfinder").mkdir()
    (home / "pathfinder" / "pathfinder32").symlink_to(SAMPLES / "pathfinder32")
    wanted = {
        ListOpsConfig(source="files", n_train=400, n_val=100, n_test=100): 10,
        RetrievalConfig(n_train=224, n_val=48, n_test=48): 2,
        TextConfig(n_train=150, n_val=50, n_test=200): 2,
        ImageConfig(source="cifar10", n_train=120, n_val=30, n_test=50): 10,
        PathfinderConfig(source="files", n_train=150, n_val=25, n_test=25): 2,
        PathfinderConfig(source="files", contour_length=6, n_train=40, n_val=10, n_test=10): 2,
    }
    for task, n_classes in wanted.items():
        data = tasks.load(task, 0)
        assert (len(data.train), data.n_classes) == (task.n_train, n_classes)
        assert len(data.val) + len(data.test) == task.n_val + task.n_test


def test_gz_files_are_read_too(home):
    made = expressions.generate(expressions.Grammar(4, 4, 3, 30), 10, "t")
    path = home / "listops" / "basic_train.tsv"
    for split in ("train", "val", "test"):
        listops.write(path.with_name(f"basic_{split}.tsv"), made)
    packed = gzip.compress(path.read_bytes())
    path.with_suffix(".tsv.gz").write_bytes(packed)
    path.unlink()
    data = tasks.load(ListOpsConfig(source="files", n_train=10, n_val=10, n_test=10), 0)
    assert data.train.y.tolist() == made.targets.tolist()


PINNED = {
    "listops": "340d767cee31",
    "image": "2f878bb5be6a",
    "pathfinder": "c6e6a8812cd9",
    "retrieval": "b1a2fe5c951c",
    "text": "5841b49eb988",
    "text:direction": "4a993db24a89",
}
