"""A site's node: fetches the coordinator's messages, answers in its own process, and keeps trying."""

import threading
import time
from collections.abc import Callable

from fedscaffold.federation.payloads import Payload
from fedscaffold.flower.study.fleet import FleetConnection, Unreachable

SECONDS_PER_HEARTBEAT = 5.0  # a coordinator counts a node as gone after twenty without one
FIRST_POLL, LONGEST_POLL, POLL_FACTOR = 0.05, 2.0, 1.1  # seconds between looks for messages, longer when idle
RETRY = 3.0  # seconds before connecting again
LINGER = 1.0  # seconds that a node stays after its last answer, which Flower forgets when it leaves


def answer_flower(
    connection: FleetConnection,
    *,
    answer: Callable[[Payload], Payload],
    done: Callable[[], bool],
    say: Callable[[str], None],
) -> None:
    """Answer messages until `done()`; connect again whenever the connection is lost.

    Parameters
    ----------
    connection
        The node's end of Flower's Fleet API.
    answer
        answer(request) → the signed reply.
    done
        done() → whether the study is over for this site.
    say
        Called with a sentence when the state of the connection changes.
    """
    said = ""
    try:
        while not done():
            try:
                connection.activate()
                said = _say_once(f"connected to {connection.address}", said, say)
                _serve(connection, answer, done)
            except Unreachable as error:
                said = _say_once(str(error), said, say)
                time.sleep(RETRY)
    finally:
        connection.close()


def _serve(connection: FleetConnection, answer: Callable[[Payload], Payload], done: Callable[[], bool]) -> None:
    gone = threading.Event()

    def beat() -> None:
        while not gone.wait(SECONDS_PER_HEARTBEAT):
            if not connection.beat():
                gone.set()

    beats = threading.Thread(target=beat, daemon=True)
    beats.start()
    try:
        pause = FIRST_POLL
        while not done() and not gone.is_set():
            received = connection.fetch()
            if received is not None:
                connection.reply(received, answer(received.payload))
                pause = FIRST_POLL
            else:
                time.sleep(pause)
                pause = min(pause * POLL_FACTOR, LONGEST_POLL)
        if done():
            time.sleep(LINGER)
    finally:
        gone.set()
        beats.join()
        connection.deactivate()
    if not done():
        raise Unreachable(f"the coordinator at {connection.address} no longer knows this site; connecting again")


def _say_once(sentence: str, before: str, say: Callable[[str], None]) -> str:
    if sentence != before:
        say(sentence)
    return sentence
