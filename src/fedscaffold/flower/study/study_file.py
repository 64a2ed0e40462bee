"""STUDY.toml: what the people of a study decided, and the coordinator's keys in a folder beside it."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields, path_of, write_text
from fedscaffold.federation.study.journal import private_folder
from fedscaffold.federation.study.settings import StudySettings

Missing = Literal["wait", "leave out", "error"]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]{1,253}):(\d{1,5})")
WIDTH = 34  # of a line before its comment
DEFAULT_ADDRESS, DEFAULT_TIMEOUT = "127.0.0.1:9092", 600.0


def name_problems(study: str, *sites: str) -> list[str]:
    """Return a sentence for every name that cannot stand in a path or on a terminal."""
    named = [("the name of a study", study), *(("the name of a site", site) for site in sites)]
    return [
        f"{what} must be letters, digits, '.', '_' and '-', got {name!r:.60}"
        for what, name in named
        if not NAME.fullmatch(name)
    ]


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """A study as its file describes it.

    Parameters
    ----------
    name
        Name of the study, which sites see.
    settings
        Target, model and tolerance.
    sites
        Names of the sites.
    missing
        What the others do when a site is offline or cannot take part: "wait" for it, "leave out" the site, or end
        the study with an "error".
    timeout
        Seconds after which a site that does not answer is left out, or ends the study.
    address
        HOST:PORT under which sites reach the coordinator.

    Examples
    --------
    >>> from fedscaffold.federation import StudySettings
    >>> from fedscaffold.flower.study.study_file import StudyFile
    >>> study = StudyFile(name="pilot", settings=StudySettings(target="ill"), sites=("bonn", "lyon"))
    >>> StudyFile.parse(study.text()) == study
    True
    """

    name: str
    settings: StudySettings
    sites: tuple[str, ...]
    missing: Missing = "wait"
    timeout: float = DEFAULT_TIMEOUT
    address: str = DEFAULT_ADDRESS

    def __post_init__(self) -> None:
        problems: list[Any] = name_problems(self.name, *self.sites)
        if len(set(self.sites)) < len(self.sites):
            problems.append("sites must have different names")
        if len(self.sites) < 2:
            problems.append(f"a study has two sites or more, got {len(self.sites)}")
        if self.missing not in get_args(Missing):
            problems.append(f"missing must be 'wait', 'leave out' or 'error', got {self.missing!r:.60}")
        if not 1.0 <= self.timeout <= 1e7:
            problems.append(f"timeout must be between 1 and 1e7 seconds, got {self.timeout!r:.60}")
        found = ADDRESS.fullmatch(self.address)
        if not found or not 1 <= int(found[2]) <= 65535:
            problems.append(f"address must be HOST:PORT, got {self.address!r:.60}")
        if len(self.sites) >= 2:
            try:
                self.settings.check_number_of_sites(len(self.sites))
            except InvalidInput as error:
                problems.append(error)
        if problems:
            raise InvalidInput("; ".join(map(str, problems)))

    @property
    def host(self) -> str:
        """The host of the address."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port of the address."""
        return int(self.address.rpartition(":")[2])

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a study from its file."""
        file = path_of(path)
        try:
            return cls.parse(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"cannot read {file}: {getattr(error, 'strerror', error)}") from None
        except InvalidInput as error:
            raise InvalidInput(f"{file}: {error}") from None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The study in the text of its file."""
        try:
            fields = Fields(tomllib.loads(text), "the study")
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"this is not TOML: {error}") from None
        fields.only("name", "model", "sites", "coordinator")
        sites, coordinator = fields.fields("sites"), fields.fields("coordinator")
        sites.only("names", "missing", "timeout")
        coordinator.only("address")
        names = sites.items("names")
        if not all(isinstance(name, str) for name in names):
            raise InvalidInput("the study: names of sites must be text")
        missing: Any = sites.choice("missing", *get_args(Missing)) if "missing" in sites else "wait"
        return cls(
            name=fields.text("name", longest=100),
            settings=StudySettings.from_json(fields.value("model")),
            sites=tuple(names),
            missing=missing,
            timeout=sites.number("timeout") if "timeout" in sites else DEFAULT_TIMEOUT,
            address=coordinator.text("address") if "address" in coordinator else DEFAULT_ADDRESS,
        )

    def text(self) -> str:
        """The file, with a comment for every line that can be changed."""
        lines = []
        for name, value in self.settings.to_json().items():
            line = f"{name} = {_toml(value)}" if value is not None else f"# {name} = {UNSET.get(name, '[]')}"
            lines.append(f"{line:<{WIDTH}} # {ABOUT[name]}" if name in ABOUT else line)
        model = "\n".join(lines)
        return TEMPLATE.format(
            name=_toml(self.name), model=model, sites=_toml(list(self.sites)), missing=_toml(self.missing),
            timeout=_toml(self.timeout), address=_toml(self.address),
        )  # fmt: skip


ABOUT = {
    "target": "the column to predict",
    "kind": "logistic for classes, ridge for numbers, poisson for counts, gamma for amounts",
    "features": "columns to predict from; without this line all that the sites have",
    "ignore": "columns that are not used",
    "categorical": "columns of numbers that are categories",
    "l2": "penalty l2/2 |theta|^2 on standardised columns; 'auto': 1 over the rows of all sites",
    "tolerance": "'se:0.05': 5 % of each standard error; a number: relative distance",
    "missing": "missing values: 'error', or 'mean' fills in the mean over all sites",
    "min_cell": "sites tell no count below this",
    "trainer": "'auto', 'scaffold' or 'newton'",
    "max_rounds": "most exchanges of training",
    "evaluate": "share of rows left out to judge the model; 0 for none",
    "seed": "of batches",
    "classes": "classes of the target; without this line those that sites tell",
    "exposure": "column of exposures, of counts and amounts",
    "offset": "column of offsets",
    "weight": "column of weights of rows",
    "client_intercepts": "whether each site has an intercept of its own",
    "secure": "whether the coordinator learns only sums over all sites",
    "secure_threshold": "sites that must be there to the end of a sum; two thirds without this line",
    "epsilon": "privacy budget; sites then add noise, and there are no standard errors",
    "delta": "of the budget; a tenth of one over the rows of the largest site without this line",
    "clip": "largest norm of a row's gradient, or of a site's message, under a budget; chosen without this line",
    "protect": "what a budget is of: 'rows', or 'sites', each table as a whole",
    "bounds": "public range or values of the target and every feature, under a budget",
}
UNSET = {
    "exposure": '"COLUMN"',
    "offset": '"COLUMN"',
    "weight": '"COLUMN"',
    "secure_threshold": "NUMBER",
    "epsilon": "NUMBER",
    "delta": "NUMBER",
    "clip": "NUMBER",
    "bounds": '{ "COLUMN" = [LOW, HIGH] }',
}  # in lines that are commented out
TEMPLATE = """# A study: one model for tables that stay at their sites. Run it with `fedscaffold study run`.
name = {name}

[model]
{model}

[sites]
names = {sites}
missing = {missing}   # a site that is offline or cannot take part: 'wait' for it, 'leave out' the site, or 'error'
timeout = {timeout}   # seconds after which a silent site is left out, or an error

[coordinator]
address = {address}   # HOST:PORT under which sites reach this machine
"""


def _toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(name)} = {_toml(item)}" for name, item in value.items()) + " }"
    return repr(value)


@dataclass(frozen=True)
class StudyFolder:
    """The coordinator's keys and certificates, in a folder beside the study's file.

    Parameters
    ----------
    file
        STUDY.toml.
    """

    file: Path

    @property
    def path(self) -> Path:
        """The folder, made for its owner alone."""
        return private_folder(self.file.resolve().with_suffix(".keys"))

    @property
    def signing_key(self) -> Path:
        """The key with which the coordinator signs its requests."""
        return self.path / "coordinator.key"

    def accepted(self) -> dict[str, str]:
        """Public keys of sites that were accepted, in OpenSSH's format, by site."""
        folder = self.path / "accepted"
        files = sorted(folder.glob("*.pub")) if folder.is_dir() else []
        return {file.stem: file.read_text(encoding="utf-8").strip() for file in files}

    def accept(self, site: str, key: str) -> None:
        """Accept a site's public key."""
        write_text(private_folder(self.path / "accepted") / f"{site}.pub", key.strip() + "\n")


def split_names(names: Sequence[str] | None) -> list[str]:
    """Names from options that may be given several times, each with commas between names."""
    return [part.strip() for name in names or () for part in name.split(",") if part.strip()]
