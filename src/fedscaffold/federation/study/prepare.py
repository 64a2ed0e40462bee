"""The second phase: counts and sums of every site's columns, from which all sites agree on one encoding.

A site tells how many rows it has; for a number how many are missing, the mean and the sum of squared deviations;
for a category the count of each value. Counts below the study's `min_cell` never leave the site: rare values of a
category are merged into one called "(other)", and a number with fewer values than that is not summed at all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields
from fedscaffold.core.types import Array
from fedscaffold.data import tables
from fedscaffold.data.encoding import Category, Column, Encoding, Number
from fedscaffold.data.statistics import ColumnMoments
from fedscaffold.data.tables import some
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.study.greet import ColumnKind
from fedscaffold.federation.study.messages import SiteProblems
from fedscaffold.federation.study.settings import StudySettings

OTHER = "(other)"  # the value of a category that stands for all rare ones
MOST_CATEGORIES, LONGEST_LABEL = 10_000, 1_000
WITHHELD = -1  # in place of a count below the least that a site tells


@dataclass(frozen=True, kw_only=True)
class CategoryCounts:
    """How often each value of a column occurs; rare ones count as `OTHER`, `missing` for rows without a value."""

    counts: Mapping[str, int]
    missing: int = 0

    def __add__(self, other: "CategoryCounts") -> "CategoryCounts":
        values = sorted({*self.counts, *other.counts})
        both = {value: max(self.counts.get(value, 0), 0) + max(other.counts.get(value, 0), 0) for value in values}
        return CategoryCounts(counts=both, missing=self.missing + other.missing)


ColumnSums = ColumnMoments | CategoryCounts


@dataclass(frozen=True, kw_only=True)
class TableSums:
    """What a site tells about the target and the features of its table, which has `rows` rows.

    `exposure` is the mean of the rows' exposures, 1 where they have none.
    """

    rows: int
    target: ColumnSums
    features: Mapping[str, ColumnSums]
    exposure: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """The sums as values that JSON can hold; of numbers the count follows from rows and missing values."""
        features = {name: _to_json(column) for name, column in self.features.items()}
        told = {"rows": self.rows, "target": _to_json(self.target), "features": features}
        return told if self.exposure == 1.0 else {**told, "exposure": self.exposure}

    @classmethod
    def from_json(cls, values: Any, site: str, kinds: Mapping[str, ColumnKind], settings: StudySettings) -> Self:
        """The sums that a site sent, validated field by field against what it was asked for."""
        fields = Fields(values, f"the sums of site {site}")
        features = fields.fields("features")
        features.only(*kinds)
        rows = fields.integer("rows", least=0, most=2**53)
        return cls(
            rows=rows,
            target=_from_json(fields.fields("target"), _kind_of_target(settings), rows),
            features={name: _from_json(features.fields(name), kind, rows) for name, kind in kinds.items()},
            exposure=fields.number("exposure", least=0.0) if "exposure" in fields else 1.0,
        )


def _kind_of_target(settings: StudySettings) -> ColumnKind:
    return "category" if settings.family.classes else "number"


def _to_json(column: ColumnSums) -> dict[str, Any]:
    missing = {"missing": column.missing} if column.missing else {}
    if isinstance(column, CategoryCounts):
        return {"counts": dict(column.counts), **missing}
    if not column.count:
        return dict(missing)
    return {"mean": column.mean, "squares": column.squares, **missing}


def _from_json(fields: Fields, kind: ColumnKind, rows: int) -> ColumnSums:
    missing = fields.integer("missing", least=WITHHELD, most=rows) if "missing" in fields else 0
    if kind == "number":
        if "mean" not in fields:
            return ColumnMoments(missing=missing)
        return ColumnMoments(
            count=rows - max(missing, 0),
            mean=fields.number("mean"),
            squares=fields.number("squares", least=0.0),
            missing=missing,
        )
    counts = fields.fields("counts")
    names = counts.names()
    if len(names) > MOST_CATEGORIES or any(len(name) > LONGEST_LABEL for name in names):
        raise fields.error(f"{fields.source} has more than {MOST_CATEGORIES} values, or very long ones")
    return CategoryCounts(counts={name: counts.integer(name, least=WITHHELD) for name in names}, missing=missing)


# at a site


def sum_table(table: Any, kinds: Mapping[str, ColumnKind], settings: StudySettings, *, min_cell: int) -> TableSums:
    """The sums of a site's table, with what is below `min_cell` merged or withheld."""
    found = all_sums(table, kinds, settings)
    return replace(
        found,
        target=_without_small_cells(found.target, min_cell),
        features={name: _without_small_cells(column, min_cell) for name, column in found.features.items()},
    )


def all_sums(table: Any, kinds: Mapping[str, ColumnKind], settings: StudySettings) -> TableSums:
    """The sums of a site's table with small counts among them; refused if the model cannot have its values."""
    source, records = tables.frame_source(table), settings.record_columns
    read = source.read
    goal = _kind_of_target(settings)
    found = {name: _sum_column(read, name, kind) for name, kind in {**kinds, settings.target: goal}.items()}
    own = {
        role: _sum_numbers(read, name, np.exp if role == "offset" else np.asarray)
        for role, name in records.items()
    }
    _check_ranges(settings, found[settings.target], own)
    exposure = next((own[role].mean for role in ("exposure", "offset") if role in own), 1.0)
    rows = tables.arrow_table(table, [settings.target]).num_rows
    target = found[settings.target]
    if isinstance(target, CategoryCounts) and settings.classes is not None:
        _check_classes(settings, target)
    return TableSums(rows=rows, target=found.pop(settings.target), features=found, exposure=exposure)


def _check_ranges(settings: StudySettings, target: ColumnSums, records: Mapping[str, ColumnMoments]) -> None:
    """Refuse what the kind of model cannot have; no value of the table is told."""
    problems = []
    if isinstance(target, ColumnMoments) and target.count:
        must = settings.family.out_of_range(target.smallest)
        if must is None and settings.family.whole and target.fractional:
            must = "hold whole numbers"
        problems += [f"the target {settings.target!r} must {must} for {settings.kind}"] if must else []
    for role, moments in records.items():
        if moments.missing or moments.infinite or (moments.count and moments.smallest <= 0.0):
            must = "finite numbers" if role == "offset" else "positive numbers"
            problems.append(f"the {role} column {settings.record_columns[role]!r} must hold {must} in all rows")
    if problems:
        raise Refusal(RefusalCode.VALUES_OUT_OF_RANGE, "; ".join(problems))


def _sum_numbers(
    read: Callable[[Sequence[str]], Any], name: str, of: Callable[[Array], Array] = np.asarray
) -> ColumnMoments:
    """Moments of a function of a column's numbers."""
    moments = ColumnMoments(fractional=0)
    for block in tables.blocks(read([name])):
        moments = moments.after(of(tables.numbers(tables.by_name(block)[name])))
    if moments.infinite:
        raise InvalidInput(f"column {name!r} has {moments.infinite} infinite values; replace them")
    return moments


def _check_classes(settings: StudySettings, target: CategoryCounts) -> None:
    classes = [str(value) for value in settings.classes or ()]
    other = [value for value in target.counts if value not in classes]
    if other:
        raise Refusal(
            RefusalCode.OTHER_CLASSES,
            f"the target {settings.target!r} has the values {some(other)}, but the classes of the study are "
            f"{some(classes)}",
        )


def _sum_column(read: Callable[[Sequence[str]], Any], name: str, kind: ColumnKind) -> ColumnSums:
    if kind == "number":
        return _sum_numbers(read, name)
    counts, missing = dict[str, int](), 0
    for block in tables.blocks(read([name])):
        column = tables.by_name(block)[name]
        labels = text_labels(name, column)
        missing += labels.null_count
        tally = labels.drop_null().value_counts()
        for value, count in zip(tally.field("values").to_pylist(), tally.field("counts").to_pylist(), strict=True):
            counts[value] = counts.get(value, 0) + count
    return CategoryCounts(counts=counts, missing=missing)


def _without_small_cells(column: ColumnSums, min_cell: int) -> ColumnSums:
    missing = column.missing if column.missing == 0 or column.missing >= min_cell else WITHHELD
    if isinstance(column, ColumnMoments):
        if column.count < min_cell:
            return ColumnMoments(missing=missing)
        return ColumnMoments(count=column.count, mean=column.mean, squares=column.squares, missing=missing)
    frequent = {value: count for value, count in column.counts.items() if count >= min_cell}
    rare = sum(column.counts.values()) - sum(frequent.values())
    if rare:
        frequent[OTHER] = rare if rare >= min_cell else WITHHELD
    return CategoryCounts(counts=frequent, missing=missing)


def text_labels(name: str, column: Any) -> Any:
    """A column's values as text, whatever they are at this site, so that sites that code alike agree."""
    pa = tables.load_pyarrow()
    return tables.labels(name, column).cast(pa.string())


# at the coordinator


def add_tables(sums: Sequence[TableSums]) -> TableSums:
    """The sums of all sites together; a withheld number of missing values counts as some."""
    target = _total([one.target for one in sums])
    exposure = 1.0
    if isinstance(target, ColumnMoments) and target.count:
        told = [(one.target, one.exposure) for one in sums if isinstance(one.target, ColumnMoments)]
        exposure = sum(one.count * mean for one, mean in told) / target.count
    names = sums[0].features
    return TableSums(
        rows=sum(one.rows for one in sums),
        target=target,
        features={name: _total([one.features[name] for one in sums]) for name in names},
        exposure=exposure,
    )


def agree_on_encoding(total: TableSums, kinds: Mapping[str, ColumnKind], settings: StudySettings) -> Agreement:
    """The encoding that all sites use, from the sums over all of them; refused with all that is wrong."""
    numbers = [one for one in (*total.features.values(), total.target) if isinstance(one, ColumnMoments)]
    if numbers and not any(one.count for one in numbers):
        raise InvalidInput(
            "no site tells the sums of its numbers, since each has fewer rows than its min_cell; take sites with "
            "more rows, or lower min_cell in the study and at the sites"
        )
    problems: list[str] = []
    columns = []
    for name in kinds:
        column = _column(name, total.features[name], settings, problems)
        if column is not None:
            columns.append(column)
    shift, scale, classes = 0.0, 1.0, None
    goal = total.target
    if isinstance(goal, ColumnMoments) and settings.family.log_link:
        shift = _log_mean_rate(goal, total.exposure, settings, problems)
    elif isinstance(goal, ColumnMoments):
        shift, scale = goal.mean, goal.deviation if goal.count else 0.0
        if scale <= 1e-12 * abs(shift):
            problems.append(f"the target {settings.target!r} is the same in all rows")
            scale = 1.0
    else:
        told = settings.classes if settings.classes is not None else [v for v in goal.counts if v != OTHER]
        classes = tuple(sorted(str(value) for value in told))
        if len(classes) > 2 and settings.client_intercepts:
            problems.append("client_intercepts is not there for more than two classes")
        if len(classes) < 2:
            problems.append(
                f"the target {settings.target!r} needs two classes, but sites tell {some(classes) or 'none'}; "
                "name the classes in the study, or lower min_cell"
            )
    if problems:
        raise InvalidInput("; ".join(problems))
    options: Any = {"kind": settings.kind, **settings.record_columns}
    encoding = Encoding(
        columns=tuple(columns), target=settings.target, client="site", classes=classes,
        intercept=not settings.client_intercepts, **options,
    )  # fmt: skip
    return Agreement(
        encoding=encoding,
        l2=settings.penalty(total.rows),
        target_shift=shift,
        target_scale=scale,
        evaluate=settings.evaluate,
        client_intercepts=settings.client_intercepts,
    )


def _log_mean_rate(target: ColumnMoments, exposure: float, settings: StudySettings, problems: list[str]) -> float:
    """The logarithm of the mean of a target over the mean of its exposures: the margin that models start from."""
    if target.mean > 0.0 and exposure > 0.0:
        return float(np.log(target.mean / exposure))
    problems.append(f"the target {settings.target!r} is 0 in all rows that sites tell of")
    return 0.0


def check_sites(sums: Mapping[str, TableSums], kinds: Mapping[str, ColumnKind], settings: StudySettings) -> None:
    """Refuse, by site, missing values that nobody asked to fill in, and another coding of the classes."""
    problems: dict[str, list[str]] = {}
    codings = {} if settings.classes is not None else other_codings(classes_of(sums), settings.target)
    for site, one in sums.items():
        found = problems.setdefault(site, [])
        missing = missing_columns(one, kinds, settings)
        if missing:
            found.append(
                f"column {some(missing)} has missing values at site {site}; fill them, or set missing to 'mean'"
            )
        if one.target.missing:
            found.append(f"the target {settings.target!r} has missing values at site {site}; drop those rows")
        found += [codings[site]] if site in codings else []
    told = {site: "; ".join(found) for site, found in problems.items() if found}
    if told:
        raise SiteProblems(told)


def missing_columns(sums: TableSums, kinds: Mapping[str, ColumnKind], settings: StudySettings) -> list[str]:
    """The features of a site that have missing values, where the study does not fill these in."""
    return [name for name in kinds if sums.features[name].missing and settings.missing == "error"]


def classes_of(sums: Mapping[str, TableSums]) -> dict[str, set[str]]:
    """The values of the target that each site tells; none for numbers."""
    counts = {
        site: one.target.counts if isinstance(one.target, CategoryCounts) else {} for site, one in sums.items()
    }
    return {site: {value for value in each if value != OTHER} for site, each in counts.items()}


def other_codings(classes: Mapping[str, set[str]], target: str) -> dict[str, str]:
    """A sentence for each site whose classes look like those of other sites in another coding."""
    found = {site: _other_coding(site, classes, target) for site in classes}
    return {site: sentence for site, sentence in found.items() if sentence}


def _other_coding(site: str, classes: Mapping[str, set[str]], target: str) -> str:
    own = classes[site]
    others = [value for other in classes if other != site for value in classes[other]]
    unlike = [value for value in others if value not in own]
    same = [v for v in sorted(own) if unlike.count(_variant(v, unlike)) > others.count(v)]
    if len(own) >= 2 and len(set(others)) >= 2 and len(unlike) == len(others):
        here, there = some(sorted(own)), some(sorted(set(others)))
    elif same:
        here, there = some(same), some([_variant(value, unlike) for value in same])
    else:
        return ""
    return (
        f"the target {target!r} is {here} at site {site} and {there} at other sites; code it alike, or name the "
        "classes of the study"
    )


def _variant(value: str, others: Sequence[str]) -> str:
    """The value among others that is the same but for its case, spaces around it, or how a number is written."""
    return next((other for other in others if _plain(other) == _plain(value)), "")


def _plain(value: str) -> str:
    text = value.strip().casefold()
    try:
        return repr(float(text))
    except ValueError:
        return text


def _total(each: Sequence[ColumnSums]) -> ColumnSums:
    """Sums over sites; a withheld number of missing values counts as some."""
    first, *rest = (replace(one, missing=abs(one.missing)) for one in each)
    for one in rest:
        first = first + one  # type: ignore[operator]
    if isinstance(first, CategoryCounts):
        return replace(first, counts=dict(sorted(first.counts.items())))
    return first


def _column(name: str, total: ColumnSums, settings: StudySettings, problems: list[str]) -> Column | None:
    if isinstance(total, CategoryCounts):
        values = tuple(total.counts)
        if len(values) < 2:
            problems.append(f"column {name!r} has one value only; ignore it")
            return None
        most_frequent = max(values, key=lambda value: total.counts[value])
        return Category(name=name, values=(*values, None) if total.missing else values, reference=most_frequent)
    if not total.count or total.deviation <= 1e-12 * abs(total.mean):
        problems.append(f"column {name!r} is constant over all sites that tell it; ignore it")
        return None
    fill = total.mean if settings.missing == "mean" else None
    return Number(name=name, fill=fill, shift=total.mean, scale=total.deviation)
