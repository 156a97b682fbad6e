"""Ctrl-C, SIGTERM and the end of a given time as a question that a training asks itself between two
steps."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

SIGNALS = (signal.SIGINT, signal.SIGTERM)
REPEAT_SECONDS = 1.0  # `timeout` sends its signal to a process and once more to its group


class Stop:
    """Whether somebody asked to stop, or the time is up.

    Attributes:
        signum: the signal that asked for it; 0 = none did.
        since: when it came, by `time.monotonic`.
        deadline: when the time is up, by the same clock.
    """

    signum = 0
    since = 0.0
    deadline = math.inf

    def __call__(self) -> bool:
        return bool(self.signum) or time.monotonic() >= self.deadline


@contextmanager
def stopping() -> Iterator[Stop]:
    """Until the end of the block, the first SIGINT or SIGTERM only makes the yielded `Stop` true.

    Another one, a second or more later, is obeyed at once. Outside the main thread, which alone
    hears signals, nothing is changed.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {}

    def hear(signum: int, frame: object) -> None:
        if not stop.signum:
            stop.signum, stop.since = signum, time.monotonic()
        elif time.monotonic() - stop.since >= REPEAT_SECONDS:
            for each, handler in before.items():
                signal.signal(each, handler)
            os.kill(os.getpid(), signum)

    for each in SIGNALS:
        handler = signal.getsignal(each)
        if handler not in (signal.SIG_IGN, None):  # ignored on purpose (nohup), or not Python's
            before[each] = signal.signal(each, hear)
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def deaf_children() -> Iterator[None]:
    """Processes and threads started meanwhile, and theirs, never hear SIGINT or SIGTERM.

    This thread hears afterwards what came meanwhile: signals are blocked, which is inherited,
    rather than ignored.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # when multiprocessing starts it, it unblocks the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
