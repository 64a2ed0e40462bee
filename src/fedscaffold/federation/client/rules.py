"""What a site tells in a study, whatever the coordinator asks."""

import dataclasses
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields


@dataclass(frozen=True, kw_only=True)
class SiteRules:
    """What a site tells in a study, whatever the coordinator asks.

    Parameters
    ----------
    min_cell
        Counts below this never leave the site.
    tell_rows
        Whether the number of rows is told in the greeting. Sums always tell how many rows are behind them.
    allow_hessians
        Whether sums of second derivatives may be asked for.
    max_hessian_dim
        Largest number of coefficients for which they may.
    by_the_clock
        Whether the site tells how long a local step really takes; a nominal speed otherwise.
    """

    min_cell: int = 5
    tell_rows: bool = True
    allow_hessians: bool = True
    max_hessian_dim: int = 1000
    by_the_clock: bool = True

    def __post_init__(self) -> None:
        fields = Fields(dataclasses.asdict(self), "the rules of the site")
        fields.integer("min_cell", least=1)
        fields.integer("max_hessian_dim", least=0)
        for name in ("tell_rows", "allow_hessians", "by_the_clock"):
            fields.flag(name)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read rules from the table [study] of a policy's TOML file; those that are missing have their defaults.

        Parameters
        ----------
        path
            The file that `SitePolicy.load` reads, with lines such as ``min_cell = 10`` below ``[study]``.
        """
        try:
            found = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("study", {})
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidInput(f"cannot read the policy {os.fspath(path)}: {error}") from None
        try:
            fields = Fields(found, "[study]")
            fields.only(*(field.name for field in dataclasses.fields(cls)))
            return cls(**fields.as_dict())
        except InvalidInput as error:
            raise InvalidInput(f"{os.fspath(path)}: {error}") from None
