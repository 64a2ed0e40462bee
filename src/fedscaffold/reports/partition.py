"""How rows and classes are spread over clients."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import given
from fedscaffold.core.errors import InvalidInput
from fedscaffold.reports.layout import INK, PALETTE, saved_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Style = Literal["bars", "bubbles"]
LARGEST_BUBBLE = 260.0  # square points
MAX_NAMES = 40
CHARACTERS_PER_INCH = 9


def draw_partition(
    counts: ArrayLike, *, clients: Sequence[Any], classes: Sequence[Any], file: Path, style: Style = "bars"
) -> None:
    """Draw the rows of each class on each client: stacked bars, or bubbles whose area is the number of rows.

    Parameters
    ----------
    counts
        Numbers of rows, (clients, classes), as in `data.partition.PartitionSummary`.
    clients, classes
        Names of the clients and of the classes.
    file
        A PNG, SVG or PDF file.
    style
        "bars" for any number of clients, "bubbles" for up to a few tens.
    """
    table = np.asarray(counts)
    if table.shape != (len(clients), len(classes)) or table.size == 0:
        raise InvalidInput(
            f"counts must have one row per client and one column per class, ({len(clients)}, {len(classes)}), "
            f"got {table.shape}"
        )
    if style not in get_args(Style):
        raise InvalidInput(f"style must be one of {get_args(Style)}, got {given(style)}")
    width = float(np.clip(2.5 + 0.28 * len(clients), 5.0, 11.0))
    height = 3.6 if style == "bars" else float(np.clip(1.6 + 0.3 * len(classes), 2.6, 8.0))
    with saved_panels([file], 1, 1, width=width, height=height) as (_, axes):
        axis = axes[0, 0]
        (_draw_bars if style == "bars" else _draw_bubbles)(axis, table, [str(name) for name in classes])
        axis.set_xlabel("client")
        axis.set_xlim(-0.6, len(clients) - 0.4)
        if len(clients) <= MAX_NAMES:
            names = [str(name) for name in clients]
            slant = 60 if len(names) * max(map(len, names)) > CHARACTERS_PER_INCH * width else 0
            axis.set_xticks(range(len(clients)), names, rotation=slant, ha="right" if slant else "center")
        axis.spines[["top", "right"]].set_visible(False)


def _draw_bars(axis: "Axes", table: NDArray[Any], names: list[str]) -> None:
    from matplotlib import colormaps

    colours = colormaps["viridis"](np.linspace(0.05, 0.95, len(names)))
    below = np.zeros(len(table))
    at = np.arange(len(table))
    width = 0.85 if len(table) <= MAX_NAMES else 1.0
    for name, column, colour in zip(names, table.T, colours, strict=True):
        axis.bar(at, column, width, bottom=below, color=colour, label=name, linewidth=0)
        below = below + column
    axis.set_ylim(0, 1.05 * below.max())
    axis.set_ylabel("rows")
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(
        handles[::-1], labels[::-1], title="class", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False,
        fontsize=8, ncols=1 + (len(labels) - 1) // 14,
    )  # fmt: skip


def _draw_bubbles(axis: "Axes", table: NDArray[Any], names: list[str]) -> None:
    client, label = np.nonzero(table)
    area = LARGEST_BUBBLE * table[client, label] / table.max()
    axis.scatter(client, label, s=area, color=PALETTE[0], linewidths=0)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(-0.7, len(names) - 0.3)
    axis.set_ylabel("class")
    axis.set_title(f"area: rows, the largest is {int(table.max())}", fontsize=9, color=INK, loc="left")
