"""A large table in Parquet, to measure `fedscaffold fit` on: rows of many clients, interleaved.

    python -m benchmarks.big_table big.parquet --rows 1000000 --columns 50 --clients 1000
    /usr/bin/time -v fedscaffold fit big.parquet --target y --client shop --out big

Each client has its own shift of the features and its own deviation from one common logistic model.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from scipy.special import expit

BLOCK = 100_000


def write(path: Path, *, rows: int, columns: int, clients: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shifts = 0.5 * rng.normal(size=(clients, columns))
    models = (rng.normal(size=columns) + 0.5 * rng.normal(size=(clients, columns))) / np.sqrt(columns)
    names = [f"x{j}" for j in range(columns)]
    schema = pa.schema([("shop", pa.string()), *((name, pa.float64()) for name in names), ("y", pa.string())])
    with parquet.ParquetWriter(path, schema) as writer:
        for begin in range(0, rows, BLOCK):
            n = min(BLOCK, rows - begin)
            owner = rng.integers(clients, size=n)
            x = shifts[owner] + rng.normal(size=(n, columns))
            bought = rng.random(n) < expit(np.einsum("ij,ij->i", x, models[owner]))
            shop = [f"shop {c:05d}" for c in owner]
            y = np.where(bought, "bought", "left")
            writer.write_table(pa.table([shop, *x.T.copy(), y], schema=schema))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write(options.path, rows=options.rows, columns=options.columns, clients=options.clients, seed=options.seed)
