"""The first phase: protocol version, and names and kinds of the columns of each site's table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.storage.fields import Fields
from fedscaffold.data import arrow
from fedscaffold.data.columns import check_names, some
from fedscaffold.federation.study.settings import StudySettings

PROTOCOL = 1  # version of the messages of a study
MOST_COLUMNS = 100_000
ColumnKind = Literal["number", "category", "other"]


@dataclass(frozen=True, kw_only=True)
class SiteSchema:
    """What a site tells first.

    Parameters
    ----------
    columns
        Kind of each column of the site's table by name: "number", "category" (text), or "other".
    n_rows
        Number of rows; None if the site does not tell.
    max_hessian_dim
        Largest number of coefficients for which the site adds its Hessian to a sum; 0 if it never does.
    """

    columns: Mapping[str, ColumnKind]
    n_rows: int | None = None
    max_hessian_dim: int = 0

    def to_json(self) -> dict[str, Any]:
        """The schema as values that JSON can hold."""
        return {
            "protocol": PROTOCOL,
            "columns": dict(self.columns),
            "n_rows": self.n_rows,
            "max_hessian_dim": self.max_hessian_dim,
        }

    @classmethod
    def from_json(cls, values: Any, site: str) -> Self:
        """The schema that a site sent, validated field by field."""
        fields = Fields(values, f"the greeting of site {site}")
        if fields.value("protocol") != PROTOCOL:
            raise InvalidInput(
                f"site {site} has version {fields.value('protocol')!r:.20} of the protocol, this side version "
                f"{PROTOCOL}; install the same version of fedscaffold on both"
            )
        columns = fields.fields("columns")
        if len(columns.names()) > MOST_COLUMNS:
            raise InvalidInput(f"the greeting of site {site} has more than {MOST_COLUMNS} columns")
        kinds: dict[str, Any] = {
            name: columns.choice(name, "number", "category", "other") for name in columns.names()
        }
        n_rows = None if fields.value("n_rows") is None else fields.integer("n_rows", least=0)
        return cls(columns=kinds, n_rows=n_rows, max_hessian_dim=fields.integer("max_hessian_dim", least=0))


def describe_table(table: Any, *, categorical: Sequence[str] = (), tell_rows: bool = True) -> SiteSchema:
    """The schema of a site's table, a frame of any library that `data.from_frame` takes."""
    source = arrow.frame_source(table)
    check_names(source.names)
    kinds: dict[str, ColumnKind] = {}
    rows = 0
    read = source.open(list(source.names))
    for group in arrow.groups(source.names):
        rows = 0
        for batch in read(group):
            rows += batch.num_rows
            for name, array in arrow.by_name(batch).items():
                kinds.setdefault(name, _kind(array.type, name in categorical))
    if not rows:
        raise InvalidInput("the table has no rows")
    return SiteSchema(columns={name: kinds[name] for name in source.names}, n_rows=rows if tell_rows else None)


def _kind(arrow_type: Any, categorical: bool) -> ColumnKind:
    if categorical or arrow.is_text(arrow_type) or arrow.is_dictionary(arrow_type):
        return "category"
    return "number" if arrow.is_number(arrow_type) else "other"


def agree_on_columns(schemas: Mapping[str, SiteSchema], settings: StudySettings) -> dict[str, ColumnKind]:
    """The features and their kinds, in order; refused with a sentence for every site and column that disagrees."""
    named = settings.features
    first = next(iter(schemas))
    wanted = tuple(schemas[first].columns) if named is None else tuple(named)
    needed = (settings.target, *settings.record_columns.values())
    wanted = tuple(name for name in wanted if name not in (*needed, *settings.ignore))
    problems = []
    for site, schema in schemas.items():
        missing = [name for name in (*needed, *wanted) if name not in schema.columns]
        if missing:
            others = "the study asks for" if named is not None or site == first else f"site {first} has"
            problems.append(f"the table of site {site} has no column {some(missing)}, which {others}")
        if named is None:
            extra = [n for n in schema.columns if n not in (*needed, *wanted, *settings.ignore)]
            if extra:
                problems.append(
                    f"the table of site {site} has the column {some(extra)}, which site {first} lacks; name the "
                    "features of the study, or those to ignore"
                )
        problems += [
            f"the {role} column {name!r} of site {site} must hold numbers"
            for role, name in settings.record_columns.items()
            if schema.columns.get(name, "number") != "number"
        ]
        for name in wanted:
            here, there = schema.columns.get(name), schemas[first].columns.get(name)
            if here == "other":
                problems.append(
                    f"column {name!r} of site {site} holds neither numbers nor text; convert or ignore it"
                )
            elif here is not None and there is not None and here != there:
                problems.append(f"column {name!r} is a {here} at site {site} and a {there} at site {first}")
    if not wanted:
        problems.append(f"there are no features besides the target {settings.target!r}")
    if problems:
        raise InvalidInput("the sites' tables do not fit together: " + "; ".join(problems))
    return {name: schemas[first].columns[name] for name in wanted}
