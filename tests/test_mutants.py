"""The list of wrong versions of the source fits the source: `make mutants` judges all of them."""

from tests.mutants import ROOT, read_mutants


def test_every_wrong_version_replaces_one_place_of_the_source() -> None:
    stale = [
        f"{mutant.file}: {mutant.old}"
        for mutant in read_mutants()
        if not (ROOT / mutant.file).exists()
        or (ROOT / mutant.file).read_text().count(mutant.old) != 1
        or not all((ROOT / test.split("::")[0]).exists() for test in mutant.tests)
    ]
    assert stale == []
