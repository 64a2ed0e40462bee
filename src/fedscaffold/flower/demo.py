"""The Flower app that `fedscaffold federate` runs: tables, one per node."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.arrow import labels, load_pyarrow
from fedscaffold.data.columns import check_names, pick, some
from fedscaffold.data.files import existing_file, is_parquet, read_table
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.server.checkpoint import newest_model
from fedscaffold.models.planning.planned import PlannedFit

MAX_NODES = 16  # each is two or three processes
NAME = "demo"
AGREEMENT, SETTINGS, POLICY, MODULE = "agreement.json", "settings.json", "policy.toml", "federate_app"
ROUND = re.compile(r"round (\d+) of (\d+): (\d+) clients counted")

POLICY_TEXT = """# What each node of this demonstration allows. Draws by the run's seed make it comparable with a
# simulation; a real site keeps the last two lines alone, and has safe defaults for the others.
draws = "seed"
min_batch_size = 1
min_rows = 1
max_local_steps = 1_000_000_000
max_rounds = 1_000_000
run_names = ["demo"]
methods = ["Scaffold"]
"""

PYPROJECT = f"""[project]
name = "federate-app"
version = "1.0.0"
description = "Scaffold on tables, one per node"
license = "BSD-3-Clause"
dependencies = []

[tool.flwr.app]
publisher = "fedscaffold"

[tool.flwr.app.components]
serverapp = "{MODULE}:server"
clientapp = "{MODULE}:client"

[tool.flwr.app.config]
settings = ""
"""

APP = '''"""Scaffold on tables, one per node: a complete Flower app."""

import json
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

from fedscaffold import Scaffold, flower

client = flower.client_app(
    lambda context: flower.Agreement.load(context.node_config["agreement"]).read(context.node_config["data"]),
    engine="reference",  # Flower starts a process for every message: loading a compiler would take longer
)
server = ServerApp()


@server.main()
def main(grid, context):
    """Run, or continue after a stop."""
    settings = json.loads(Path(context.run_config["settings"]).read_text())
    strategy = flower.Strategy(Scaffold(**settings["method"]), **settings["strategy"])
    strategy.start(grid, ArrayRecord([np.zeros(settings["dim"])]), num_rounds=settings["rounds"], timeout=600.0)
'''


class SiteTable(NamedTuple):
    """The name of a node and its table."""

    name: str
    table: Any


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The files of a demonstration, in one folder."""

    folder: Path

    @property
    def app(self) -> Path:
        """Folder of the Flower app."""
        return self.folder / "app"

    @property
    def settings(self) -> Path:
        """File with the method's and the strategy's settings, which the server reads."""
        return self.folder / SETTINGS

    @property
    def server(self) -> Path:
        """Folder of the server's own files."""
        return self.folder / "server"

    def write(self, task: PlannedFit, *, seed: int) -> None:
        """Write the app, the agreement of the nodes, and the server's settings."""
        self.app.mkdir(parents=True)
        (self.app / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
        (self.app / f"{MODULE}.py").write_text(APP, encoding="utf-8")
        agreement = Agreement(
            encoding=task.problem.encoding,
            l2=task.problem.l2,
            target_shift=task.target_shift,
            target_scale=task.target_scale,
        )
        agreement.save(self.folder / AGREEMENT)
        (self.folder / POLICY).write_text(POLICY_TEXT, encoding="utf-8")
        settings = {
            "method": {"step_size": task.method.step_size, "local_steps": task.method.local_steps},
            "strategy": {
                "n_clients": task.problem.n_clients,
                "folder": str(self.server),
                "name": NAME,
                "batch_size": task.batch_size,
                "seed": seed,
                "min_clients": task.problem.n_clients,
                "outlier_factor": None,
            },
            "dim": int(task.problem.dim),
            "rounds": task.rounds,
        }
        self.settings.write_text(json.dumps(settings, indent=1), encoding="utf-8")

    def write_part(self, k: int, table: Any) -> Path:
        """Write the table of node k to a folder of its own; returns the file."""
        from pyarrow import parquet

        disk = self.folder / f"node-{k}"
        disk.mkdir()
        parquet.write_table(table, disk / "data.parquet")
        return disk / "data.parquet"

    def node(self, k: int, data: Path) -> dict[str, str | int]:
        """The configuration of node k, whose table is the file `data`."""
        return {
            "partition-id": k,
            "state-dir": str(self.folder / f"state-{k}"),
            "agreement": str(self.folder / AGREEMENT),
            "policy": str(self.folder / POLICY),
            "data": str(data.resolve()),
        }

    def theta(self, task: PlannedFit) -> tuple[int, Array]:
        """The number of rounds that the server has closed, and its θ of shape (dim,)."""
        return newest_model(self.server) or (0, np.zeros(task.problem.dim))


def site_tables(files: Sequence[Path], client: str | None) -> list[SiteTable]:
    """A table for each node: from one file each, or from one file with a column that names the client."""
    for file in files:
        is_parquet(existing_file(file))
    if client is not None:
        if len(files) != 1:
            raise InvalidInput(
                "--client splits one file; give one file, or leave --client out and give one per node"
            )
        parts = _split(read_table(files[0]), client)
    else:
        if len(files) < 2:
            raise InvalidInput(
                "a federation has two nodes or more: give one file per node, or --client to split one"
            )
        names = [file.name.split(".")[0] for file in files]
        if len(set(names)) < len(names):
            raise InvalidInput(f"files must have different names, got {some(names)}")
        parts = sorted(SiteTable(name, read_table(file)) for name, file in zip(names, files, strict=True))
    if not 2 <= len(parts) <= MAX_NODES:
        raise InvalidInput(
            f"this demonstration is for 2 to {MAX_NODES} nodes on one machine, here are {len(parts)}; "
            "`fedscaffold fit` simulates any number"
        )
    return parts


def _split(table: Any, column: str) -> list[SiteTable]:
    pa = load_pyarrow()
    import pyarrow.compute as compute

    check_names(table.schema.names)
    owner = pick(table.schema.names, column)
    named = pa.chunked_array([labels(owner, chunk) for chunk in table.column(owner).chunks])
    if named.null_count:
        raise InvalidInput(f"the client column {column!r} has {named.null_count} missing values; fill them first")
    names = sorted(named.unique().to_pylist())
    return [
        SiteTable(str(name), table.filter(compute.equal(named, pa.scalar(name, named.type)))) for name in names
    ]


def pool_tables(parts: Sequence[SiteTable]) -> tuple[Any, str]:
    """All tables as one, and the name of its column of node names; for the comparison with a simulation."""
    pa = load_pyarrow()
    column = "node"
    while any(column in part.table.schema.names for part in parts):
        column += "_"
    first = parts[0].table.schema
    for part in parts[1:]:
        if part.table.schema.names != first.names:
            raise InvalidInput(
                f"all tables must have the same columns: {parts[0].name} has {some(first.names)}, "
                f"{part.name} has {some(part.table.schema.names)}"
            )
    width = len(str(len(parts)))
    owners = [f"{k:0{width}d}" for k in range(len(parts))]
    tables = [
        part.table.append_column(column, pa.array([owner] * part.table.num_rows))
        for part, owner in zip(parts, owners, strict=True)
    ]
    try:
        return pa.concat_tables(tables, promote_options="permissive"), column
    except pa.ArrowException as error:
        raise InvalidInput(f"the tables' columns are of different types: {error}") from None
