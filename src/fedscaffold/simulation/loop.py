"""The round loop that all kinds of runs share: step, record, save, and stop cleanly on Ctrl-C."""

from collections.abc import Callable

from fedscaffold.simulation.rounds import RoundStep, State


def run_rounds(
    step: RoundStep,
    state: State,
    *,
    until: int,
    record: Callable[[State], bool],
    progress: Callable[[int], None],
    save: Callable[[State], None],
    save_every: int,
) -> State:
    """Run rounds until `until` rounds are done, or until `record` returns True.

    Parameters
    ----------
    step
        One round.
    state
        Where to start.
    until
        Number of rounds, counted from the beginning of the run.
    record
        Called with the state after every round; True ends the loop.
    progress
        Called with the number of rounds done, at the beginning and after every round.
    save
        Called with the state every `save_every` rounds, at the end, and on Ctrl-C between two rounds. A round that
        is only half done or half recorded is never saved.
    save_every
        Rounds between two calls of `save`.
    """
    complete = True
    try:
        progress(state.round)
        while state.round < until:
            new = step(state)
            complete = False
            ended = record(new)
            state, complete = new, True
            if ended or state.round % save_every == 0 or state.round == until:
                save(state)
            progress(state.round)
            if ended:
                break
    except KeyboardInterrupt:
        if complete and step.is_current(state):
            save(state)
        raise
    return state
