"""A Dask scheduler: found at its address, or started here with workers on all cores.

Whoever reaches a Dask scheduler can run code as the user who started it. The local cluster listens
on 127.0.0.1 only; others should stand in a private network, or use TLS.
"""

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sptlib.errors import ConfigError, SptError, Stopped
from sptlib.signals import deaf_children

if TYPE_CHECKING:
    from distributed import Client

#: Dask's own, without ``MALLOC_TRIM_THRESHOLD_``. With it, malloc returns freed memory at once;
#: that suits large data frames, but a training frees and takes the same memory at every step.
WORKER_ENVIRONMENT = {
    "distributed.nanny.pre-spawn-environ": {
        "OMP_NUM_THREADS": 1,
        "MKL_NUM_THREADS": 1,
        "OPENBLAS_NUM_THREADS": 1,
    }
}
#: Dask gives some of its loggers a level of their own
LOGGERS = (
    "distributed",
    "distributed.client",
    "distributed.protocol.core",
    "tornado.application",
)
CONNECT_SECONDS = 20.0  # to wait for a scheduler to answer
LOST_SECONDS = 5.0  # without a connection, after which the scheduler counts as gone


class SchedulerError(SptError):
    """No Dask scheduler answers, or it went away in the middle."""


@dataclass(frozen=True)
class Tls:
    """Certificates for a scheduler at ``tls://``: files in PEM format.

    Attributes:
        ca: of the authority that signed the scheduler's and the workers' certificates.
        cert: this client's certificate.
        key: its private key.
    """

    ca: str
    cert: str
    key: str


@contextmanager
def connect(
    scheduler: str, workers: int, tls: Tls | None, stop: Callable[[], bool]
) -> "Iterator[Client]":
    """A client of the scheduler at this address; "" = of a new one with workers on this machine.

    Raises:
        ConfigError: without Dask, or for certificates that cannot be read.
        SchedulerError: if nothing answers within 20 seconds.
        Stopped: if ``stop()`` became true meanwhile.
    """
    try:
        import dask
        from distributed import Client, LocalCluster
        from distributed.security import Security
    except ImportError as error:
        raise ConfigError(
            "several processes need Dask: pip install 'sptlib[cluster]', or use --workers 1"
        ) from error
    security = None
    if tls is not None:
        for file in (tls.ca, tls.cert, tls.key):
            if not os.access(file, os.R_OK):
                raise ConfigError(f"cannot read the TLS file {file}")
        security = Security(
            tls_ca_file=tls.ca,
            tls_client_cert=tls.cert,
            tls_client_key=tls.key,
            require_encryption=True,
        )
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        cluster = None
        if not scheduler:
            stack.enter_context(dask.config.set(WORKER_ENVIRONMENT))
            with deaf_children():
                cluster = LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    host="127.0.0.1",
                    dashboard_address="127.0.0.1:0",
                    silence_logs=50,
                )
            stack.callback(cluster.close)
        else:
            _answers(scheduler, security, stop)
        client = Client(
            cluster or scheduler, security=security, timeout=CONNECT_SECONDS, set_as_default=False
        )
        stack.callback(client.close, timeout=LOST_SECONDS)
        yield client


def _answers(scheduler: str, security, stop: Callable[[], bool]) -> None:
    """Raise `SchedulerError` unless a scheduler answers at this address.

    A client that finds none leaves threads behind; this asks without one.
    """
    from distributed.comm import connect
    from distributed.security import Security

    async def ask() -> None:
        how = (security or Security()).get_connection_args("client")
        comm = await connect(scheduler, timeout=CONNECT_SECONDS, **how)
        await comm.close()

    async def ask_in_time() -> None:  # `connect` has no limit for the greetings after it
        await asyncio.wait_for(ask(), CONNECT_SECONDS)

    answers: queue.SimpleQueue = queue.SimpleQueue()

    def work() -> None:  # in a thread: a notebook has a running event loop in its own
        try:
            answers.put(asyncio.run(ask_in_time()))
        except Exception as error:  # whatever listens there may say anything
            answers.put(error)

    threading.Thread(target=work, daemon=True).start()
    while not stop():
        with suppress(queue.Empty):
            error = answers.get(timeout=0.2)
            break
    else:
        raise Stopped("connecting", 0, 0)
    if error is not None:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SchedulerError(f"no Dask scheduler answers at {scheduler!r}: {why}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the tracebacks that Dask logs when it loses a connection; we say it ourselves."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
