"""Rounds against the condition number and gradients per client against the number of clients: the open question.

`python -m benchmarks.acceleration [--quick]` runs the study of `fedscaffold reproduce acceleration`, resumes what
an interrupted call left in results/acceleration, and draws the figure of the documentation.
"""

from benchmarks import measured
from fedscaffold.core.display.progress import progress_bar
from fedscaffold.core.storage.files import folder_at
from fedscaffold.paper.acceleration.cells import AccelerationSettings
from fedscaffold.paper.acceleration.claims import claims, figures, proved_rounds, save
from fedscaffold.paper.acceleration.figure import draw
from fedscaffold.paper.acceleration.measure import simulate

QUICK = AccelerationSettings(conditions=(4.0, 8.0, 16.0), clients=(4, 8, 16))


def main() -> None:
    """Measure, print, draw and save."""
    options = measured.parser(__doc__).parse_args()
    settings = QUICK if options.quick else AccelerationSettings()
    out = folder_at(measured.ROOT / "results" / ("quick/acceleration" if options.quick else "acceleration"))
    with progress_bar("Acceleration", None) as advance:
        points = simulate(settings, scratch=folder_at(out / "unfinished"), advance=advance)
    found = claims(points, settings)
    for claim in found:
        print(f"{claim.verdict:10} {claim.claim}: {claim.measured}")
    save(points, found, settings, out)
    if not options.quick:
        image = measured.ROOT / "docs" / "images" / "acceleration.png"
        draw(points, settings, proved_rounds(points, settings), [image])
    note = "Ridge regression on tables and logistic regression on streams, d = 4, B = 1."
    measured.save("acceleration", figures(points, settings), options, note=note)


if __name__ == "__main__":
    main()
