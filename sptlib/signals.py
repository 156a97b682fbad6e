"""Ctrl-C and SIGTERM as a question that a training asks itself between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Stop:
    """Whether somebody asked to stop; ``signum`` says by which signal (0 = nobody did)."""

    signum = 0

    def __call__(self) -> bool:
        return bool(self.signum)


@contextmanager
def stopping() -> Iterator[Stop]:
    """Until the end of the block, the first SIGINT or SIGTERM only makes the yielded `Stop` true.

    The second one is obeyed at once. Outside the main thread, which alone hears signals, nothing
    is changed.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {}

    def hear(signum: int, frame: object) -> None:
        stop.signum = signum
        for each, handler in before.items():
            signal.signal(each, handler)

    for each in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(each)
        if handler not in (signal.SIG_IGN, None):  # ignored on purpose (nohup), or not Python's
            before[each] = signal.signal(each, hear)
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
