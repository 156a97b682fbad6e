"""The errors that users meet."""

import pickle

from sptlib.errors import DivergedError, unknown


def test_suggestions():
    assert str(unknown("task", "neighbour", ["image", "neighbor"])) == (
        "unknown task 'neighbour'; did you mean 'neighbor'?"
    )
    assert str(unknown("task", 7, ["image", "neighbor"])) == (
        "unknown task '7'; known: image, neighbor"
    )


def test_divergence_crosses_process_borders():
    error = pickle.loads(pickle.dumps(DivergedError("pretrain", 3, [{"step": 3}])))
    assert (error.stage, error.step, error.log) == ("pretrain", 3, [{"step": 3}])
    assert "pretrain diverged" in str(error)
    assert "step 3" in str(error)
