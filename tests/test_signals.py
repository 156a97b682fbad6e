"""Ctrl-C and SIGTERM become a question; the second one is obeyed; nobody else notices."""

import os
import signal
import threading

import pytest

from sptlib.signals import stopping


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def signum(request):
    """A signal that raises `KeyboardInterrupt` outside of the block."""
    before = signal.signal(request.param, signal.default_int_handler)
    yield request.param
    signal.signal(request.param, before)


def test_the_first_asks_the_second_is_obeyed(signum):
    with stopping() as stop:
        assert not stop()
        os.kill(os.getpid(), signum)
        assert stop()
        assert stop.signum == signum
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signum)
    assert signal.getsignal(signum) is signal.default_int_handler


def test_afterwards_everything_is_as_before(signum):
    with stopping():
        pass
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signum)


def test_what_is_ignored_on_purpose_stays_ignored(signum):
    signal.signal(signum, signal.SIG_IGN)  # as nohup does
    with stopping() as stop:
        os.kill(os.getpid(), signum)
        assert not stop()
    assert signal.getsignal(signum) is signal.SIG_IGN


def test_other_threads_leave_the_handlers_alone(signum):
    seen = []

    def work():
        with stopping() as stop:
            seen.append((stop(), signal.getsignal(signum)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, signal.default_int_handler)]
