"""Who may import whom, what `import fedscaffold` loads, and how long a file may be."""

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "fedscaffold"
FILES = sorted(SOURCE.rglob("*.py"))

DOORS = {"cli", "sklearn", "flower", "dashboard"}
SIMULATOR = {"simulation", "engines"}
LIBRARY = {
    "core",
    "problems",
    "data",
    "inference",
    "methods",
    "engines",
    "simulation",
    "theory",
    "planning",
    "models",
    "reports",
    "federation",
    "privacy",
    "trackers",
}
STUDIES = {"paper", "benchmarking"}
FRONT = {"__init__"}  # the package itself, which imports the simulator
MAY_IMPORT = {
    **{room: {"core", room} for room in ("core", "problems", "methods", "engines", "conformance")},
    "privacy": {"core", "privacy"},
    "trackers": {"core", "trackers"},
    "data": {"core", "problems", "data"},
    "inference": {"core", "problems", "inference"},
    "simulation": {"core", "engines", "simulation"},
    "theory": {"core", "methods", "privacy", "theory"},
    "planning": {"core", "problems", "methods", "privacy", "theory", "simulation", "engines", "planning"},
    "reports": {"core", "inference", "simulation", "theory", "planning", "reports"},
    "models": {
        *(
            "core",
            "problems",
            "data",
            "inference",
            "methods",
            "engines",
            "simulation",
            "theory",
            "planning",
            "privacy",
            "reports",
            "models",
        )
    },
    "federation": {
        *(
            "core",
            "problems",
            "data",
            "inference",
            "methods",
            "engines",
            "simulation",
            "privacy",
            "models",
            "reports",
        ),
        "federation",
    },
    "benchmarking": LIBRARY | FRONT | {"benchmarking"},
    "paper": LIBRARY | FRONT | STUDIES,
    "__init__": LIBRARY | DOORS | {"conformance", "benchmarking"},  # lazily
    **{door: LIBRARY | FRONT | STUDIES | {door, "conformance"} for door in DOORS},
}
HEAVY = (
    "native",
    "sklearn",
    "matplotlib",
    "typer",
    "rich",
    "pandas",
    "jax",
    "optax",
    "ray",
    "flwr",
    "dp_accounting",
    "torch",
    "mlflow",
    "tensorboard",
    "wandb",
)
MAY_IMPORT["cli"] |= {"flower", "dashboard"}  # the outermost door


FRONT_OF_THEORY = SOURCE / "theory" / "__init__.py"  # binds planning's names lazily; see the test of that


def room_of(file: Path) -> str:
    return file.relative_to(SOURCE).with_suffix("").parts[0]


def imported_names(source: str, package: tuple[str, ...]) -> Iterator[str]:
    """Full names of modules and of what is taken from them, at any depth of the source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


@cache
def names_in(file: Path) -> tuple[str, ...]:
    return tuple(imported_names(file.read_text(), ("fedscaffold", *file.relative_to(SOURCE).parent.parts)))


def rooms_among(names: Iterable[str]) -> set[str]:
    parts = [name.split(".") for name in names]
    inside = {name[1] if len(name) > 1 else "" for name in parts if name[0] == "fedscaffold"}
    return {name if is_room(name) else "__init__" for name in inside}


def is_room(name: str) -> bool:
    """Or a name from the package's own front, such as InvalidInput."""
    return name != "" and ((SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file() or name in MAY_IMPORT)


def rooms_of(file: Path) -> set[str]:
    """Rooms that a file imports, without planning for the front of theory."""
    found = rooms_among(names_in(file))
    return found - {"planning"} if file == FRONT_OF_THEORY else found


@cache
def import_graph() -> dict[str, set[str]]:
    """For each room those that it imports."""
    graph: dict[str, set[str]] = {}
    for file in FILES:
        graph.setdefault(room_of(file), set()).update(rooms_of(file))
    return graph


def reachable_rooms(start: str) -> set[str]:
    """Rooms that a room imports, that those import, and so on."""
    graph = import_graph()
    seen, left = set[str](), [start]
    while left:
        for room in graph.get(left.pop(), set()) - seen:
            seen.add(room)
            left.append(room)
    return seen


@pytest.mark.parametrize(
    ("source", "rooms"),
    [
        ("import fedscaffold.cli.main", {"cli"}),
        ("from fedscaffold import engines", {"engines"}),
        ("from fedscaffold.core import types", {"core"}),
        ("def f():\n    from fedscaffold.theory import bounds", {"theory"}),
        ("from ..engines import Native", {"engines"}),
        ("from . import trace", {"simulation"}),
        ("import fedscaffold", {"__init__"}),
        ("from fedscaffold import InvalidInput, __version__", {"__init__"}),
        ("import numpy as np", set()),
    ],
)
def test_this_file_sees_all_ways_to_import(source: str, rooms: set[str]) -> None:
    assert rooms_among(imported_names(source, ("fedscaffold", "simulation"))) == rooms


def test_import_rules() -> None:
    broken = []
    for file in FILES:
        room = room_of(file)
        assert room in MAY_IMPORT, f"{room} is a new room: give it a rule in MAY_IMPORT"
        too_much = rooms_of(file) - MAY_IMPORT[room]
        if too_much:
            broken.append(f"{file.relative_to(SOURCE)}: {room} must not import {sorted(too_much)}")
    assert broken == []


def test_the_rules_themselves() -> None:
    for room, allowed in MAY_IMPORT.items():
        others = DOORS - {room} - ({"flower", "dashboard"} if room == "cli" else set())
        assert room == "__init__" or not allowed & others, f"{room} may import a door"
    assert not MAY_IMPORT["theory"] & SIMULATOR
    assert all("theory" not in MAY_IMPORT[room] for room in SIMULATOR)


def test_theory_does_not_reach_the_simulator_in_a_roundabout_way() -> None:
    """What the rooms of theory and of the simulator import, and what that imports, and so on."""
    assert {"core", "engines"} <= reachable_rooms("simulation")
    assert not reachable_rooms("theory") & SIMULATOR
    for room in SIMULATOR:
        assert "theory" not in reachable_rooms(room)


def test_theory_names_planning_once_and_loads_it_on_demand() -> None:
    """`theory.predict` and `theory.plan` are planning's, bound when used; no other file of theory knows it."""
    naming = [file for file in (SOURCE / "theory").rglob("*.py") if "fedscaffold.planning" in file.read_text()]
    assert naming == [FRONT_OF_THEORY]
    code = (
        "import pkgutil, importlib, sys, fedscaffold.theory as room\n"
        "names = [found.name for found in pkgutil.walk_packages(room.__path__, 'fedscaffold.theory.')]\n"
        "for name in names: importlib.import_module(name)\n"
        "above = ('fedscaffold.planning', 'fedscaffold.simulation', 'fedscaffold.engines')\n"
        "assert not [name for name in sys.modules if name.startswith(above)]\n"
        "assert room.predict.__module__.startswith('fedscaffold.planning')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_protocol_of_federations_knows_no_transport() -> None:
    """No file of federation, nor of any room that it reaches, imports flwr at any depth; nor does importing it."""
    reached = reachable_rooms("federation") | {"federation"}
    assert "flower" not in reached
    for file in FILES:
        if room_of(file) in reached:
            assert "flwr" not in {name.split(".")[0] for name in names_in(file)}, file
    files = (SOURCE / "federation").rglob("[!_]*.py")
    modules = [".".join(("fedscaffold", *file.relative_to(SOURCE).with_suffix("").parts)) for file in files]
    code = (
        f"import sys, importlib; [importlib.import_module(name) for name in {modules}]; "
        "import fedscaffold.federation as room; [getattr(room, name) for name in room.__all__]; "
        "sys.exit('flwr' in sys.modules or 'fedscaffold.flower' in sys.modules)"
    )
    assert len(modules) > 8
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_flower_the_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['flwr'] = None; import fedscaffold as fs; fs.flower.ProblemTask\n"
        "try: fs.flower.Strategy\nexcept fs.MissingDependency as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("federations need Flower; pip install 'fedscaffold[flower]' (from a checkout:")


def test_importing_the_library_loads_nothing_heavy() -> None:
    code = (
        "import fedscaffold, fedscaffold.conformance, json, sys; "
        f"print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


LAZY = ("engines", "federation", "methods", "simulation")  # packages that load public names on demand


@pytest.mark.parametrize("name", LAZY)
def test_public_names_are_loaded_on_demand_and_no_module_is_called_like_one(name: str) -> None:
    """Python would find a module of that name, once it is imported, in place of the public name."""
    package = importlib.import_module(f"fedscaffold.{name}")
    modules = {file.stem for file in (SOURCE / name).glob("[!_]*")}
    assert modules.isdisjoint(package.__all__)
    for public in package.__all__:
        assert getattr(package, public) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing


def test_modules_of_such_a_package_are_found_without_an_import() -> None:
    code = "import fedscaffold as fs; fs.methods.compression.TopK, fs.simulation.rounds.State, fs.engines.native"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_runs_need_no_scipy() -> None:
    code = (
        "import sys\n"
        "sys.modules['scipy'] = None\n"
        "import fedscaffold as fs\n"
        "problem = fs.problems.RidgeStream(n_clients=2, dim=3)\n"
        "method = fs.Scaffold(step_size=0.1, local_steps=2)\n"
        "for engine in ('native', 'reference'):\n"
        "    fs.run(problem, method, rounds=2, batch_size=4, engine=engine)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_client_loads_neither_rounds_of_simulations_nor_other_methods_and_engines() -> None:
    """A Flower client is a new process for every message: what it imports is most of our share of a round."""
    code = (
        "import fedscaffold.federation.client.requests, sys; from fedscaffold import Scaffold\n"
        "print(*(name for name in sys.modules if name.startswith('fedscaffold.')), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "fedscaffold.methods.scaffold" in loaded
    unneeded = {
        f"fedscaffold.{name}"
        for name in ("simulation.run_method", "simulation.trace", "methods.proxskip", "engines.jax_.engine")
    }
    assert not loaded & unneeded


def test_files_are_short() -> None:
    lines = {str(file.relative_to(SOURCE)): len(file.read_text().splitlines()) for file in FILES}
    assert {name: count for name, count in lines.items() if count > 700} == {}
    assert not any(file.name == "utils.py" for file in FILES)


def test_no_folder_is_crowded() -> None:
    folders = {path.parent for path in FILES}
    counts = {str(folder.relative_to(SOURCE)): len(list(folder.glob("*.py"))) for folder in folders}
    assert {name: count for name, count in counts.items() if count > 15} == {}
