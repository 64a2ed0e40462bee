"""Check the library of an adapter where it is installed, and print the report as one line of JSON.

`python -m fedscaffold.conformance.adapters NAME '{"seed": 0, "tolerance": 1e-8, "only": null}' [FOLDER]`, with the
folder of a checkout's modules if the library is not installed. Output of the library goes to standard error.
"""

import contextlib
import json
import sys
from collections.abc import Sequence

from fedscaffold.conformance import check
from fedscaffold.conformance.adapters import adapter


def main(arguments: Sequence[str]) -> None:
    """Run the checks and print the report."""
    name, options, *folder = arguments
    sys.path[:0] = folder
    with contextlib.redirect_stdout(sys.stderr):
        report = check(adapter(name), **json.loads(options))
    sys.stdout.write(json.dumps(report.to_dict()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
