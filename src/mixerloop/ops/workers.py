"""Independent pieces of work on all cores: worker threads with a torch thread each.

Torch's own threads divide every operator and wait for each other after each operator, which is
slower than a single thread where operators are small. Workers wait for each other at the end only.
An operator on a single thread computes the same bits on every machine of a kind, so results do not
depend on the number of workers.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
ITEMS_PER_WORKER = 2
"""Items taken from the caller and not yet yielded: a running item and the next item."""


def map_on_cores(
    function: Callable[[Item], Result], items: Iterable[Item], *, device: torch.device
) -> Generator[Result]:
    """Yield `function(item)` for each item, in the order of the items.

    There are as many workers as torch has threads here; on another device than the CPU the caller
    runs the items itself. Inference mode and autocast belong to a thread, so `function` enters
    them itself. After an exception no further item is begun.
    """
    num_workers = torch.get_num_threads()
    if device.type != "cpu" or num_workers == 1:
        yield from map(function, items)
        return
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(num_workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        for item in items:
            if len(waiting) == ITEMS_PER_WORKER * num_workers:
                yield waiting.popleft().result()
            waiting.append(pool.submit(function, item))
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(num_workers)  # which threads that are made later begin with
