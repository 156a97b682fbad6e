"""Notebooks as users run them: by papermill as it stands, and by `sptlib run`."""

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from sptlib import notebooks
from sptlib.cli import main
from sptlib.errors import ConfigError
from sptlib.notebooks import root

ROOT = root()
PAPERMILL = [sys.executable, "-W", "ignore", "-m", "papermill"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder that looks like the checkout, so that no test writes into the real results."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("_config.yml", "sptlib", "notebooks", "data"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture
def inside(checkout, monkeypatch):
    monkeypatch.chdir(checkout)
    monkeypatch.delenv("SPTLIB_STORE", raising=False)
    return checkout


def glued(path) -> dict[str, str]:
    """Every number that the executed notebook hands to prose."""
    found = {}
    for cell in json.loads(path.read_text())["cells"]:
        for output in cell.get("outputs", []):
            scrapbook = output.get("metadata", {}).get("scrapbook", {})
            if scrapbook:
                found[scrapbook["name"]] = "".join(output["data"][
                    f"{scrapbook['mime_prefix']}text/plain"])
    return found


def test_papermill_and_sptlib_run_give_the_same_numbers(inside):
    out = inside / "out.ipynb"
    command = [*PAPERMILL, "notebooks/01_synthetic.ipynb", str(out), "-k", "python3",
               "-p", "preset", "smoke", "-p", "seeds", "2"]
    done = subprocess.run(command, cwd=inside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    own = inside / "own-store"
    command = [sys.executable, "-m", "sptlib", "run", "01", "-p", "seeds", "2", "-p", "preset",
               "smoke", "--store", str(own)]
    done = subprocess.run(command, cwd=inside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    published = inside / "results" / "notebooks" / "01_synthetic.ipynb"
    assert str(published) in done.stdout.splitlines()[-1]
    assert glued(published) == glued(out)
    assert "spt_acc" in glued(out)
    picture = inside / "results" / "figures" / "fig-synthetic-arms.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    # each computed by itself: the second one had an empty store of its own
    assert len(list(own.glob("*/result.json"))) == len(
        list((inside / "results" / "store").glob("*/result.json"))) > 0


def test_second_notebook_runs_and_is_skipped_when_nothing_changed(inside):
    given = {"preset": "smoke", "seeds": 1}
    path = notebooks.find("02")
    first = notebooks.run(path, given, if_changed=True)
    stamp = first.stat().st_mtime_ns
    notebooks.run(path, given, if_changed=True)
    assert first.stat().st_mtime_ns == stamp
    assert notebooks._stamp(path, {"seeds": 2}, "") != notebooks._stamp(path, given, "")
    assert glued(first)["few_n_seeds"] == "1"


@pytest.mark.parametrize(("name", "number"), [("03", "tasks_n_seeds"), ("04", "rep_n_seeds")])
def test_the_other_notebooks_run_on_one_task(inside, name, number):
    given = {"preset": "smoke", "seeds": 1, "task": "text:direction"}
    done = notebooks.run(notebooks.find(name), given)
    assert glued(done)[number] == "1"


def words(path) -> str:
    """Everything that a reader of an executed notebook sees as text."""
    cells = json.loads(path.read_text())["cells"]
    data = [out.get("data", {}) for cell in cells for out in cell.get("outputs", [])]
    kinds = ("text/markdown", "text/html", "text/plain")
    return "\n".join("".join(found[kind]) for found in data for kind in kinds if kind in found)


@pytest.mark.parametrize("name", ["05", "06", "07", "08", "09"])
def test_ablations_run_with_other_parameters_and_speak_of_them(inside, name):
    given = {"preset": "smoke", "seeds": 2, "task": "text", "n_layers": 2}
    done = notebooks.run(notebooks.find(name), given)
    text = words(done)
    assert "preset `smoke`; seeds 0–1 (n = 2)" in text
    assert re.search(r"\*\*Text(, [^*]+)?\*\*: .* (is above|is below|cannot be told apart)", text)
    assert "nan" not in text.lower().replace("nano", "")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("10", {"task": "image", "n_layers": 2, "seeds": 2}),
        ("11", {"task": "text:direction", "seeds": 1}),
        ("12", {"task": "neighbor", "seeds": 2}),
    ],
)
def test_the_mechanism_can_be_watched_elsewhere(inside, name, given):
    text = words(notebooks.run(notebooks.find(name), {"preset": "smoke", **given}))
    assert f"n = {given['seeds']})" in text
    assert "not asked: other Runs than the preset's" in text
    assert not re.search(r"\bnan\b", re.sub("base64,[A-Za-z0-9+/=]+", "", text).lower())
    where = {"10": "**Image**", "11": "**Text, direction**", "12": "Neighbor +1 / −1"}
    assert where[name] in text


def test_lengths_of_pretraining_are_a_parameter(inside):
    given = {"preset": "smoke", "seeds": 1, "pretrain_epochs": [0, 1, 5]}
    text = words(notebooks.run(notebooks.find("05"), given))
    assert "Neighbor +1 / +3, 1 epochs" in text
    assert "Neighbor +1 / +3, 5 epochs" in text
    assert "in the one seed there is" in text


def test_the_ledger_page_only_reads(inside, monkeypatch, tmp_path):
    monkeypatch.setenv("SPTLIB_STORE", str(tmp_path / "empty"))
    done = notebooks.run(notebooks.find("14"), {"preset": "smoke", "seeds": 1})
    found = glued(done)
    assert {found[f"C{i}_live"] for i in range(1, 15)} == {"'not run'"}
    assert not (tmp_path / "empty").exists()


def test_a_failing_notebook_publishes_nothing(inside):
    broken = json.loads((ROOT / "notebooks" / "01_synthetic.ipynb").read_text())
    broken["cells"] = [c for c in broken["cells"]
                       if "parameters" in c["metadata"].get("tags", [])]
    broken["cells"].append({"cell_type": "code", "execution_count": None, "metadata": {},
                            "outputs": [], "source": "1 / 0", "id": "broken"})
    path = inside / "99_broken.ipynb"
    path.write_text(json.dumps(broken))
    with pytest.raises(notebooks.NotebookError, match="ZeroDivisionError"):
        notebooks.run(path, {})
    assert not (inside / "results" / "notebooks" / path.name).exists()
    assert (inside / "results" / "notebooks" / ".failed" / path.name).exists()


@pytest.mark.parametrize(("given", "message"), [
    (("sedes", "2"), "did you mean 'seeds'"),
    (("seeds", "two"), "seeds of 01_synthetic is int, found 'two'"),
    (("seeds", "-1"), "seeds must be positive"),
    (("n_layers", "-1"), "n_layers must be positive"),
    (("preset", "clasroom"), "did you mean 'classroom'"),
    (("task", "neighbour"), "did you mean 'neighbor'"),
])
def test_wrong_parameters_are_refused_at_once(inside, given, message):
    done = CliRunner().invoke(main, ["run", "01", "-p", *given])
    assert done.exit_code == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_a_list_is_not_a_number(inside):
    done = CliRunner().invoke(main, ["run", "02", "-p", "labels", "50"])
    assert (done.exit_code, "labels of 02_few_labels is list" in done.stderr) == (1, True)


def test_unknown_notebook_is_refused(inside):
    with pytest.raises(ConfigError, match="did you mean '02_few_labels'"):
        notebooks.find("02_few_label")


def test_outside_a_checkout_there_are_no_notebooks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="inside a checkout"):
        notebooks.root()


def test_lists_are_read_as_yaml():
    from sptlib.cli_options import read_value

    assert read_value("[50, 100]") == [50, 100]
    assert read_value("1e-3") == 1e-3
    assert read_value("null") is None
    assert read_value("+1 / +3") == "+1 / +3"
