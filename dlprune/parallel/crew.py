"""Who does the work: threads or processes of this machine, or the workers of a dask cluster. Results come in order.

Images are cut into parts in one way, whoever works on them, and results are taken in the order of the parts; so what
comes out does not depend on who was quicker, or whether a worker was lost.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from ..errors import H_ERR_DL_MODEL_RUNTIME, H_ERR_WIPT1, H_ERR_WIPV1, HOperatorError

P = TypeVar("P")
R = TypeVar("R")
P_contra = TypeVar("P_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Cluster(Protocol):
    """A dask cluster, as its client (distributed.Client) shows it."""

    def register_plugin(self, plugin: Any, name: str | None = None) -> Any:
        """Bring something to every worker."""
        ...


#: None: threads of this process. A number: so many processes of this machine. Or the client of a dask cluster.
Workers: TypeAlias = Cluster | int | None

#: ONNX Runtime uses all cores for one image after the other; a second thread prepares images meanwhile.
_THREADS: Final = 2


class Job(Protocol[P_contra, R_co]):
    """What is to be done with each part; it can be pickled, as every worker gets it once."""

    def __call__(self, part: P_contra, /) -> R_co:
        """Work on a part."""
        ...


@dataclass(frozen=True)
class Crew:
    """Workers that know their job.

    Attributes:
        submit: takes a part and returns its future (of concurrent.futures, or dask's, which is like it).
        hands: returns how many parts they can work on at once by now.
    """

    submit: Callable[[Any], Future[Any]]
    hands: Callable[[], int]


def in_order(workers: Workers, job: Job[P, R], parts: Iterable[P]) -> Iterator[R]:
    """Yield what comes of every part, in the order of the parts.

    Parts are only taken as workers become free: besides those being worked on, at most as many again wait.

    Raises HOperatorError 7913 (workers that died or cannot do the job), and whatever the job raises.
    """
    with _hire(workers, job) as crew:
        waiting: deque[Future[R]] = deque()
        try:
            for part in parts:
                waiting.append(crew.submit(part))
                if len(waiting) >= 2 * crew.hands():
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise HOperatorError(
                H_ERR_DL_MODEL_RUNTIME,
                f"A worker process of this machine died ({error}). At its start: the script calls the operator without "
                '`if __name__ == "__main__":`. Later: most often memory was short; use fewer processes.',
            ) from error
        finally:
            for future in waiting:
                future.cancel()


def check_workers(workers: object, index: int) -> None:
    """Raise HOperatorError 1200 + index (no workers) or 1300 + index (impossible number) for a parameter 'client'."""
    if isinstance(workers, int) and not isinstance(workers, bool):
        most = 4 * (os.cpu_count() or 1)
        if not 1 <= workers <= most:
            raise HOperatorError(
                H_ERR_WIPV1 + index - 1,
                f"client is {workers} processes; between 1 and {most} are possible on this machine.",
            )
    elif workers is not None and not _is_cluster(workers):
        raise HOperatorError(
            H_ERR_WIPT1 + index - 1,
            f"client is {workers!r}; the client of a dask cluster (distributed.Client), a number of processes, or None "
            "for threads of this process is needed.",
        )


def _is_cluster(workers: object) -> bool:
    return type(workers).__module__.partition(".")[0] == "distributed" and hasattr(workers, "register_plugin")


def _hire(workers: Workers, job: Job[P, R]) -> AbstractContextManager[Crew]:
    if workers is None:
        return _threads(job)
    if isinstance(workers, int):
        return _processes(job, workers)
    from .cluster import cluster  # extra `dask`

    return cluster(workers, job)


@contextmanager
def _threads(job: Job[P, R]) -> Iterator[Crew]:
    with ThreadPoolExecutor(_THREADS) as pool:
        yield Crew(lambda part: pool.submit(job, part), lambda: _THREADS)


@contextmanager
def _processes(job: Job[P, R], number: int) -> Iterator[Crew]:
    fresh = multiprocessing.get_context("spawn")  # a fork of a process with ONNX Runtime's threads would hang
    with TemporaryDirectory(prefix="dlprune") as folder:
        # A worker that ends before it has read its arguments leaves the writer waiting for ever if they fill the pipe,
        # as a model does; a script without a main guard gives such workers.
        file = Path(folder) / "job"
        file.write_bytes(pickle.dumps(job))
        with ProcessPoolExecutor(number, fresh, initializer=_learn, initargs=(file,)) as pool:
            yield Crew(lambda part: pool.submit(_do, part), lambda: number)


_learnt: list[Job[Any, Any]] = []


def _learn(file: Path) -> None:
    _learnt[:] = [pickle.loads(file.read_bytes())]


def _do(part: Any) -> Any:
    return _learnt[0](part)
