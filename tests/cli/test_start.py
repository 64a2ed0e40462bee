"""The program while it is loading, and where scikit-learn is missing."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fedscaffold.cli import commands
from fedscaffold.cli.main import SUMMARIES, app

PROGRAM = "import sys; from fedscaffold.cli.start import main; sys.exit(main())"
WITHOUT = "import sys; sys.modules['sklearn'] = None; from fedscaffold.cli.start import main; main()"
KILLED, INTERRUPTED = -signal.SIGINT, 130  # before Python has begun to handle signals, and after


def interrupted(times: int) -> None:
    command = [sys.executable, "-c", PROGRAM, "fit", "--help"]
    begin = time.monotonic()
    subprocess.run(command, capture_output=True, check=True)
    takes = time.monotonic() - begin
    for share in np.random.default_rng(0).uniform(0.1, 0.9, size=times):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            time.sleep(share * takes)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
        assert "Traceback" not in errors
        assert process.returncode in (0, KILLED, INTERRUPTED)


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    files = {file.stem for file in Path(commands.__file__).parent.iterdir()} - {
        "__init__",
        "__pycache__",
        "study_new",
    }
    assert files == set(SUMMARIES)
    group = get_command(app)
    assert isinstance(group, click.Group)
    for name, summary in SUMMARIES.items():
        command = group.get_command(click.Context(group), name)
        assert command is not None
        assert (command.help or "").split("\n\n")[0].replace("\n", " ") == summary


def test_the_list_of_commands_loads_none_of_them() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from fedscaffold.cli.main import app\n"
        "result = CliRunner().invoke(app, ['--help']); assert result.exit_code == 0, result.output\n"
        "print([name for name in sys.modules if name.startswith('fedscaffold.cli.commands.') or name == 'numpy'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_ctrl_c_while_loading_leaves_no_traceback() -> None:
    interrupted(3)


@pytest.mark.slow
def test_ctrl_c_while_loading_sixty_times() -> None:
    interrupted(60)


def test_without_scikit_learn_regression_runs_and_classification_says_what_it_needs() -> None:
    options = ["run", "--clients", "4", "--rounds", "3", "--local-steps", "5", "--engine", "reference"]
    done = subprocess.run([sys.executable, "-c", WITHOUT, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *options, "--problem", "classification"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "fedscaffold[reproduce]" in done.stderr
    assert "Traceback" not in done.stderr


CORE = (
    "import sys\n"
    "for name in ('scipy', 'sklearn', 'pandas', 'pyarrow', 'matplotlib', 'jax', 'flwr', 'cryptography'):\n"
    "    sys.modules[name] = None\n"
    "from fedscaffold.cli.start import main; main()"
)


@pytest.mark.parametrize(
    "command",
    [
        "run --clients 4 --rounds 3 --local-steps 5 --engine reference",
        "predict --clients 4 --rounds 3 --local-steps 5",
    ],
)
def test_the_core_needs_numpy_alone(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", CORE, *command.split()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command", ["fit --help", "compare --help", "study --help", "study new a.toml --target y --site a,b,c"]
)
def test_a_command_without_its_packages_says_what_to_install(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", CORE, *command.split()], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'fedscaffold[" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["runn"], "no command runn; did you mean run?"),
        (["study", "jon"], "Did you mean 'join'?"),
        (["run", "--lr", "0.1"], "no option --lr; did you mean --step-size?"),
        (["run", "--learning-rate", "0.1"], "did you mean --step-size?"),
        (["run", "--n_rounds", "3"], "did you mean --rounds?"),
        (["run", "--local-epochs", "3"], "did you mean --local-steps?"),
        (["fit", "--alpha", "1"], "did you mean --l2?"),
        (["fit", "t.csv", "--label", "ill"], "did you mean --target?"),
        (["study", "join", "--dat", "t.csv"], "did you mean --data?"),
        (["run", "--qqq", "3"], "no option --qqq "),
    ],
)
def test_an_unknown_command_or_option_gets_the_name_that_was_meant(words: list[str], hint: str) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, words)
    assert result.exit_code == 2
    assert hint in result.output
    assert result.output.lower().count("did you mean") <= 1
