"""Step sizes in stages against fixed ones: the table and the figure of docs/explanation/methods/staged.md.

`python -m benchmarks.staged [--quick]`, less than a minute.
"""

from benchmarks import measured
from fedscaffold.paper.method_figures.staged import comparisons, draw_all, figures


def main() -> None:
    """Measure, print, draw and save."""
    options = measured.parser(__doc__).parse_args()
    found = comparisons(rounds=50, seeds=2) if options.quick else comparisons()
    numbers = figures(found)
    for name, row in numbers.items():
        print(name, ", ".join(f"{key} {value:.2g}" for key, value in row.items()))
    if not options.quick:
        draw_all(found, measured.ROOT / "docs" / "images" / "methods" / "staged.png")
    note = "Squared error, mean over the last ten rounds of eight single runs."
    measured.save("staged", numbers, options, note=note)


if __name__ == "__main__":
    main()
