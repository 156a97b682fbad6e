"""Progress: what is counted, what is estimated, what is shown where."""

import io
from dataclasses import replace

import pytest

from sptlib import presets, progress
from sptlib.progress import Board, duration, title


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (89.4, "89 s"),
        (90, "2 min"),
        (3599, "1 h 0 min"),
        (4500, "1 h 15 min"),
        (48 * 3600, "2 d 0 h"),
        (180_000, "2 d 2 h"),
    ],
)
def test_durations_for_people(seconds, text):
    assert duration(seconds) == text


def test_titles_tell_trainings_apart(tiny):
    texts = [
        title(spec)
        for spec in (
            tiny.pretraining,
            tiny,
            replace(tiny, transfer=("qk",)),
            replace(tiny, transfer=()),
            replace(tiny, pretrain=None),
            replace(tiny, freeze=("qk", "vo"), seed=3),
        )
    ]
    assert texts == [
        "neighbor, seed 0: pretraining",
        "neighbor, seed 0: SPT",
        "neighbor, seed 0: SPT[qk]",
        "neighbor, seed 0: SPT[]",
        "neighbor, seed 0: scratch",
        "neighbor, seed 3: SPT, freeze[qk,vo]",
    ]


def test_steps_are_those_that_will_be_taken(tiny, store, where):
    from sptlib.execute import compute

    few = replace(tiny, task=replace(tiny.task, n_labels=20))
    confined = replace(few, pretrain=replace(few.pretrain, labelled_only=True))
    for run in (tiny, few, confined):
        for spec in (run, run.pretraining):
            assert compute(spec, store, where).result["steps"] == spec.n_steps


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_the_end_is_estimated_from_the_pace(tiny, clock, capsys):
    """Two pretrainings of 12 steps and a training of 36: 60 steps in all."""
    longer = replace(tiny, pretrain=None, finetune=replace(tiny.finetune, epochs=12))
    nodes = {"a": tiny.pretraining, "b": replace(tiny, seed=1).pretraining, "c": longer}
    with Board(nodes) as board:
        assert board.left() is None
        clock[0] += 100  # processes start
        board.step("a", "pretrain", 2, 12, 2.0)
        assert board.left() is None
        clock[0] += 10
        board.step("a", "pretrain", 6, 12, 2.0)
        assert board.left() == pytest.approx(135)  # 54 of 60 are left, 4 took 10 s
        board.done("a")
        assert board.left() == pytest.approx(48)
        clock[0] += 10
        board.done("b", "no luck")
        board.step("c", "finetune", 18, 36, 0.7)
        assert board.left() == pytest.approx(20 * 18 / 40)
        clock[0] += 100
        board.done("c")
        assert board.left() == 0
    assert capsys.readouterr().err.splitlines() == [
        "0 of 3 trainings",
        "0 of 3 trainings, 2 min left",
        "failed: neighbor, seed 1: pretraining: no luck",
        "2 of 3 trainings, 33 s left",
        "3 of 3 trainings in 4 min",
    ]


def test_lines_do_not_flood_a_log(tiny, clock, capsys):
    nodes = {str(i): tiny for i in range(1000)}
    with Board(nodes) as board:
        for i in range(1000):
            clock[0] += 0.05
            board.done(str(i))
    assert len(capsys.readouterr().err.splitlines()) <= 6  # 50 seconds


def test_a_terminal_gets_bars(tiny, monkeypatch, clock):
    screen = io.StringIO()
    monkeypatch.setattr(
        progress,
        "Console",
        lambda stderr: _console(file=screen, force_terminal=True, width=100),
    )
    nodes = {"a": tiny.pretraining, "b": tiny}
    with Board(nodes) as board:
        clock[0] += 5
        board.step("a", "pretrain", 3, 12, 2.25)
        board.say("[not markup]")
        board._bars.refresh()
        board.done("a")
        board.done("b")
    text = screen.getvalue()
    assert "step 3 of 12, loss 2.2500" in text
    assert "neighbor, seed 0: pretraining" in text
    assert "[not markup]" in text
    assert "2 of 2 trainings" in text


_console = progress.Console


def test_pairs_count_as_two_sequences():
    run = presets.get("smoke", "retrieval")
    few = replace(
        run,
        task=replace(run.task, n_labels=8),
        pretrain=replace(run.pretrain, labelled_only=True, epochs=4.0, batch_size=16),
    )
    assert few.pretraining.n_steps == 4
    assert run.pretraining.n_steps == run.pretrain.n_steps(run.task.n_inputs)
