"""The first phase: protocol version, and names and kinds of the columns of each site's table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields
from fedscaffold.data import tables
from fedscaffold.data.tables import check_names, some
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.study.messages import SiteProblems
from fedscaffold.federation.study.settings import StudySettings

PROTOCOL = 3  # version of the messages of a study
MOST_COLUMNS = 100_000
ColumnKind = Literal["number", "category", "other"]
T = TypeVar("T")


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
    identity
        The site's public key for secure sums, in hexadecimal; "" where there are none.
    """

    columns: Mapping[str, ColumnKind]
    n_rows: int | None = None
    max_hessian_dim: int = 0
    identity: str = ""

    def to_json(self) -> dict[str, Any]:
        """The schema as values that JSON can hold."""
        return {
            "protocol": PROTOCOL,
            "columns": dict(self.columns),
            "n_rows": self.n_rows,
            "max_hessian_dim": self.max_hessian_dim,
            **({"identity": self.identity} if self.identity else {}),
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
        identity = fields.text("identity", pattern="[0-9a-f]{64}") if "identity" in fields else ""
        most = fields.integer("max_hessian_dim", least=0)
        return cls(columns=kinds, n_rows=n_rows, max_hessian_dim=most, identity=identity)


def describe_table(table: Any, *, categorical: Sequence[str] = (), tell_rows: bool = True) -> SiteSchema:
    """The schema of a site's table, a frame of any library that `data.from_frame` takes."""
    names = tables.frame_source(table).names
    check_names(names)
    n_rows = int(tables.arrow_table(table, list(names[:1])).num_rows)
    if not n_rows:
        raise Refusal(RefusalCode.NO_ROWS, "the table has no rows")
    schema = tables.arrow_schema(table, list(names))
    kinds = {name: _kind(schema.field(name).type, name in categorical) for name in names}
    return SiteSchema(columns=kinds, n_rows=n_rows if tell_rows else None)


def _kind(arrow_type: Any, categorical: bool) -> ColumnKind:
    if categorical or tables.is_text(arrow_type) or tables.is_dictionary(arrow_type):
        return "category"
    return "number" if tables.is_number(arrow_type) else "other"


def agree_on_columns(schemas: Mapping[str, SiteSchema], settings: StudySettings) -> dict[str, ColumnKind]:
    """The features and their kinds, in order; refused with a sentence for every site that disagrees.

    Where the study does not name its features, they are those that most sites have; of several such sets, those
    of the first site.
    """
    named = settings.features
    usual = _most_common([frozenset(schema.columns) for schema in schemas.values()])
    model = next(site for site, schema in schemas.items() if frozenset(schema.columns) == usual)
    wanted = tuple(schemas[model].columns) if named is None else tuple(named)
    wanted = tuple(name for name in wanted if name not in (*_needed(settings), *settings.ignore))
    if not wanted:
        raise InvalidInput(f"there are no features besides the target {settings.target!r}")
    strange = [name for name in settings.categorical if name not in wanted]
    if strange:
        raise InvalidInput(f"categorical names {some(strange)}, which is not a feature of the study")
    kinds = {
        name: _most_common([schema.columns[name] for schema in schemas.values() if name in schema.columns])
        for name in wanted
        if any(name in schema.columns for schema in schemas.values())
    }
    problems = {}
    for site, schema in schemas.items():
        found = _problems_of(site, schema, wanted, kinds, settings, model)
        if found:
            problems[site] = "; ".join(found)
    if problems:
        raise SiteProblems(problems)
    return kinds


def _needed(settings: StudySettings) -> tuple[str, ...]:
    """The columns besides features that every site's table must have."""
    return settings.target, *settings.record_columns.values()


def _problems_of(
    site: str, schema: SiteSchema, wanted: Sequence[str], kinds: Mapping[str, ColumnKind], settings: StudySettings,
    model: str,
) -> list[str]:  # fmt: skip
    """What is wrong with one site's columns, in sentences that name them."""
    problems = []
    missing = [name for name in (*_needed(settings), *wanted) if name not in schema.columns]
    if missing:
        others = "the study asks for" if settings.features is not None or site == model else f"site {model} has"
        problems.append(f"the table of site {site} has no column {some(missing)}, which {others}")
    if settings.features is None:
        extra = [n for n in schema.columns if n not in (*_needed(settings), *wanted, *settings.ignore)]
        if extra:
            problems.append(
                f"the table of site {site} has the column {some(extra)}, which site {model} lacks; name the "
                "features of the study, or those to ignore"
            )
    problems += [
        f"the {role} column {name!r} of site {site} must hold numbers"
        for role, name in settings.record_columns.items()
        if schema.columns.get(name, "number") != "number"
    ]
    for name in wanted:
        here = schema.columns.get(name)
        if here == "other":
            problems.append(f"column {name!r} of site {site} holds neither numbers nor text; convert or ignore it")
        elif here is not None and here != kinds[name]:
            problems.append(f"column {name!r} is a {here} at site {site} and a {kinds[name]} at other sites")
    return problems


def _most_common(items: Sequence[T]) -> T:
    """The item that occurs most often; of several such, the first."""
    return max(items, key=items.count)
