"""Blocks of clients on several threads, which take them one after another."""

import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

SECONDS_BEFORE_SLEEPING = 2e-4

Ends = tuple[int, int]  # of a block of clients
Ended = SimpleQueue[BaseException | None]  # how each helper ended


class Helpers:
    """Threads besides the calling one, started when they are first needed.

    Rounds may be shorter than a millisecond, and queues alone wake a thread sooner than a `ThreadPoolExecutor`
    does, which makes a future for each call.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._threads: list[Thread] = []
        self._work: SimpleQueue[tuple[Callable[[], None], Ended] | None] = SimpleQueue()

    def run_blocks(self, block: Callable[[int, int], None], blocks: list[Ends]) -> None:
        """Call `block` for all blocks, on this thread and on the helpers; an error in one of them ends all.

        This thread takes blocks like the others instead of waiting for them. At the end it looks for a moment
        whether the others are done before it sleeps, since waking up takes as long as a short round.
        """
        helping = min(self.count, len(blocks) - 1)
        if helping == 0:
            for ends in blocks:
                block(*ends)
            return
        left, ended = deque(blocks), Ended()

        def work() -> None:
            while True:
                try:
                    ends = left.popleft()
                except IndexError:
                    return
                block(*ends)

        self._start(helping)
        for _ in range(helping):
            self._work.put((work, ended))
        errors: list[BaseException | None] = []
        try:
            work()
        finally:
            left.clear()  # after an error the others stop too
            until = time.perf_counter() + SECONDS_BEFORE_SLEEPING
            while ended.qsize() < helping and time.perf_counter() < until:
                time.sleep(0)
            errors += [ended.get() for _ in range(helping)]
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        """Tell the threads to end, and wait until they have."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start(self, count: int) -> None:
        while len(self._threads) < count:
            thread = Thread(target=self._serve, name="fedscaffold-helper", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self) -> None:
        while (task := self._work.get()) is not None:
            work, ended = task
            try:
                work()
            except BaseException as error:  # raised again by the thread that waits for this one
                ended.put(error)
            else:
                ended.put(None)
            del task, work, ended  # which hold the round's arrays
