"""Ctrl-C and SIGTERM become a question; the second one is obeyed; nobody else notices."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from sptlib import signals
from sptlib.signals import deaf_children, stopping


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def signum(request):
    """A signal that raises `KeyboardInterrupt` outside of the block."""
    before = signal.signal(request.param, signal.default_int_handler)
    yield request.param
    signal.signal(request.param, before)


def test_the_first_asks_the_second_is_obeyed(signum, monkeypatch):
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.0)
    with stopping() as stop:
        assert not stop()
        os.kill(os.getpid(), signum)
        assert stop()
        assert stop.signum == signum
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signum)
    assert signal.getsignal(signum) is signal.default_int_handler


def test_an_immediate_repeat_is_the_same_order(signum):
    """`timeout` sends SIGTERM to its child, then once more to the group."""
    with stopping() as stop:
        for _ in range(3):
            os.kill(os.getpid(), signum)
        assert stop()
    with stopping() as stop:
        assert not stop()


CHILD = """
import os, signal, sys, time
print("up", flush=True)
time.sleep(0.5)
print("alive", flush=True)
"""


def test_children_are_deaf_and_this_process_hears_afterwards(signum):
    """Also the children of threads that were started meanwhile, later."""
    later = threading.Event()
    output = []

    def start():
        with subprocess.Popen(
            [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout.readline() == "up\n"
            child.send_signal(signum)
            output.append(child.stdout.read())

    def wait_and_start():
        later.wait(60)
        start()

    thread = threading.Thread(target=wait_and_start)
    with stopping() as stop:
        with deaf_children():
            thread.start()
            start()
            os.kill(os.getpid(), signum)
        assert stop()
        assert stop.signum == signum
    later.set()
    thread.join()
    assert output == ["alive\n"] * 2


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
