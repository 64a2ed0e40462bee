"""Real signals to real processes: SIGKILL at any moment, SIGINT in the middle."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fedscaffold as fs
from tests.samples import make

ROUNDS = 120
SCRIPT = """
import sys
from tests.simulation.test_killed import run

def tell(done, rounds):
    print(done, flush=True)

run(sys.argv[1], checkpoint_every=int(sys.argv[2]), progress=tell).save(sys.argv[1] + ".trace")
"""


def run(path: str | None = None, **kwargs: object) -> fs.Trace:
    """About a second of work, on the reference engine, which has nothing to compile."""
    method = fs.Scaffold(step_size=0.05, local_steps=30)
    return fs.run(
        make("logistic", (20, 30), 5), method, rounds=ROUNDS, batch_size=3, engine="reference",
        record=("mse", "average"), checkpoint=path, **kwargs,  # type: ignore[arg-type]
    )  # fmt: skip


def start(path: Path, every: int) -> "subprocess.Popen[str]":
    """The run in another process, which prints a line for each round."""
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path), str(every)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip


def read(process: "subprocess.Popen[str]", lines: int) -> int | None:
    """The last round told in so many lines; None if the run ended before."""
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(lines)]
    return int(told[-1]) if told[-1] else None


def bits(trace: fs.Trace) -> tuple[bytes, ...]:
    return (trace.theta.tobytes(), trace.control_variates.tobytes(), trace.mse.tobytes(), trace.average.tobytes())


def killed_until_done(path: Path, seed: int, most_rounds: int) -> int:
    """Starts the run and kills it a few rounds and a moment later, until it ends by itself; how often."""
    round_uniform, kills = random.Random(seed), 0
    while True:
        with start(path, every=1) as process:
            if read(process, round_uniform.randint(2, most_rounds)) is None:
                assert process.wait() == 0
                return kills
            time.sleep(round_uniform.uniform(0.0, 0.02))  # about two rounds
            process.kill()
            kills += 1


def test_killed_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    assert killed_until_done(path, seed=1, most_rounds=90) >= 2
    assert bits(fs.Trace.load(f"{path}.trace")) == bits(run())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 7))
def test_killed_at_many_more_moments(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "checkpoint"
    assert killed_until_done(path, seed, most_rounds=8) >= 9
    assert bits(fs.Trace.load(f"{path}.trace")) == bits(run())


def test_an_interrupt_leaves_a_checkpoint_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    with start(path, every=10**6) as process:
        told = read(process, 6)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=60)[1]
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"]

    rounds: list[int] = []
    resumed = run(str(path), progress=lambda done, total: rounds.append(done))
    assert told == 5
    assert rounds[0] >= told
    assert bits(resumed) == bits(run())


def test_interrupts_reach_the_tests_however_they_were_started() -> None:
    """`nohup make test &` starts processes that ignore SIGINT, and so would theirs."""

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    file = Path(__file__).parents[1] / "core" / "test_interrupts.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(command, preexec_fn=ignore, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
