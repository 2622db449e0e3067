"""A dask cluster as a crew (extra `dask`)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from distributed import Client, WorkerPlugin, get_worker
from distributed.scheduler import KilledWorker

import dlprune

from ..errors import H_ERR_DL_MODEL_RUNTIME, HError, HOperatorError
from .crew import Crew, Job

_TRIALS: Final = 3


class JobPlugin(WorkerPlugin):
    """Brings a job to every worker, once: to those that are there, to those that join, and to those that start anew."""

    def __init__(self, job: Job[Any, Any]) -> None:
        self.job = job
        self.version = dlprune.__version__

    def setup(self, worker: object) -> None:
        """Refuse to work with another version of dlprune, whose scores may differ."""
        if self.version != dlprune.__version__:
            raise RuntimeError(f"the worker has dlprune {dlprune.__version__}, the client {self.version}")


@dataclass(frozen=True)
class ClusterFuture:
    """A future whose errors tell what a user can do."""

    future: Any

    def result(self) -> Any:
        """Wait for the result. Raises HOperatorError 7913 where the cluster failed, and what the job raises."""
        try:
            return self.future.result()
        except HError:
            raise
        except KilledWorker as error:
            raise _failed(f"several workers died one after the other at the same images ({error})") from error

    def cancel(self) -> None:
        """Give up what has not begun yet."""
        self.future.cancel()


@contextmanager
def cluster(client: object, job: Job[Any, Any]) -> Iterator[Crew]:
    """Bring a job to the workers of a cluster, and let them forget it afterwards.

    Raises HOperatorError 7913 (client not connected, or asynchronous; a worker cannot do the job).
    """
    assert isinstance(client, Client)
    if client.asynchronous or client.status != "running":
        raise _failed(f"its client is {'asynchronous' if client.asynchronous else client.status}")
    name = f"dlprune-{uuid.uuid4().hex}"
    _bring(client, name, job)

    def submit(part: Any) -> Future[Any]:
        return ClusterFuture(client.submit(do_part, name, part, pure=False))  # type: ignore[return-value]

    try:
        yield Crew(submit, lambda: max(sum(client.nthreads().values()), 1))  # type: ignore[no-untyped-call]
    finally:
        if client.status == "running":
            with suppress(OSError):  # a worker that has just died has nothing to forget
                client.unregister_worker_plugin(name)  # type: ignore[no-untyped-call]


def _bring(client: Client, name: str, job: Job[Any, Any]) -> None:
    """Bring a job to all workers, and tell the scheduler to bring it to later ones. Raises HOperatorError 7913."""
    for trial in range(_TRIALS):
        try:
            client.register_plugin(JobPlugin(job), name)
            return
        except HError:
            raise
        except Exception as error:
            # Where a worker dies at this very moment the next trial does without it.
            if not isinstance(error, OSError) or trial == _TRIALS - 1:
                raise _failed(f"a worker cannot take the job ({type(error).__name__}: {error})") from error


def do_part(name: str, part: Any) -> Any:
    """Do the job of a plugin; runs on a worker."""
    plugin = get_worker().plugins[name]
    assert isinstance(plugin, JobPlugin)
    return plugin.job(part)


def _failed(what: str) -> HOperatorError:
    return HOperatorError(
        H_ERR_DL_MODEL_RUNTIME,
        f"The dask cluster failed: {what}. Every worker needs the same version of dlprune with the extra 'dask', "
        "enough memory for the model, and the images under the same path. Nothing was changed.",
    )
