"""Verify a study: compute its result again from the coordinator's folder, and compare."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.core.checks import shown
from fedscaffold.core.errors import CheckpointMismatch, FedScaffoldError, InvalidInput
from fedscaffold.core.files import json_value, path_of, read_text, write_text
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.study.coordinator import Received
from fedscaffold.federation.study.plan import StudyPlan
from fedscaffold.federation.study.roster import Roster, check_signature, sign
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.status import StatusBoard
from fedscaffold.federation.study.study import conduct
from fedscaffold.federation.study.transport import private_folder
from fedscaffold.models.fit import Fit

PLAN, KEYS, RESULT, MODEL = "plan.json", "keys.json", "for-sites.json", "model.json"  # in the coordinator's folder
LOG = "fedscaffold signed log 2"


def begin_bundle(folder: Path, plan: StudyPlan, keys: Mapping[str, str]) -> None:
    """Keep the plan and the keys of a study in the coordinator's folder; raise if it is of another study."""
    for name, values in ((PLAN, plan.to_json()), (KEYS, dict(keys))):
        path = private_folder(folder) / name
        if path.exists() and json_value(path.read_bytes()) != json.loads(json.dumps(values)):
            raise InvalidInput(f"{folder} has a study with another plan or other keys; choose another folder")
        write_text(path, json.dumps(values, indent=1))


def save_result(folder: Path, result: Fit) -> None:
    """Write a result to the coordinator's folder, with the document that sites get."""
    result.save(folder)
    write_text(folder / RESULT, json.dumps(_recorded(result), indent=1))


def signed_log(site: StudySite) -> dict[str, Any]:
    """Return the digests of all numbers that left a site, with the site's signature, for its people to publish."""
    sent = {str(entry["values"]["number"]): entry["sha256"] for entry in site.log if "sha256" in entry}
    plan = site.plan
    log = {"format": LOG, "site": site.name, "plan": "" if plan is None else plan.digest, "sent": sent}
    return dict(sign(Payload(log), LOG, site.key).values)


@dataclass(frozen=True)
class Verification:
    """The outcome of `verify`.

    Parameters
    ----------
    agreed
        Sentences about parts that agree.
    problems
        Sentences about parts that do not; empty if all is well.
    """

    agreed: tuple[str, ...]
    problems: tuple[str, ...]


def verify(folder: Path, files: Sequence[Path] = ()) -> Verification:
    """Compute a study's result again from the coordinator's folder, without any site, and compare.

    Parameters
    ----------
    folder
        The coordinator's folder.
    files
        Files from sites: signed logs, or the results that they were sent.

    Returns
    -------
    Verification
        Sentences about agreement and problems.

    Raises
    ------
    InvalidInput
        If the folder does not hold a study.
    """
    plan = StudyPlan.from_json(_json(folder / PLAN, "the plan"))
    roster = Roster.from_json({"plan": plan.digest, "keys": _json(folder / KEYS, "the sites' keys")})
    saved = _json(folder / RESULT, "the result")
    try:
        board = StatusBoard(None, plan)
        result = conduct(plan, _NoSites(), keys=roster.keys, folder=folder, board=board)
    except (CheckpointMismatch, _Incomplete) as error:
        return Verification((), (f"the exchanges do not give a result: {error}",))
    recorded = _recorded(result)
    findings = [_compared("the model with its certificate", recorded, saved)]
    if (folder / MODEL).exists():
        model = _json(folder / MODEL, "the model")
        findings.append(_compared(f"the model in {MODEL}", json.loads(result.model.to_json()), model))
    for file in files:
        try:
            findings.append(_checked(file, roster, result.received, recorded["sites"]))
        except FedScaffoldError as error:
            findings.append((False, str(error)))
    agreed, problems = (tuple(text for good, text in findings if good is which) for which in (True, False))
    return Verification(agreed, problems)


class _Incomplete(InvalidInput):
    """A question that the coordinator's folder has no answer to."""


class _NoSites:
    """A transport that reaches no site."""

    last_seconds = 0.0

    def exchange(self, requests: Mapping[str, Payload]) -> Mapping[str, Payload]:
        raise _Incomplete("an answer is missing; the study is not complete, or its folder was changed")

    def deliver(self, requests: Mapping[str, Payload]) -> None:
        return


def _recorded(result: Fit) -> dict[str, Any]:
    """Return the parts of a result that are compared, as JSON values."""
    values = {
        "theta": np.asarray(result.theta).ravel().tolist(),
        "certified_error": result.certified_error,
        "sites": result.for_sites(),
    }
    if result.privacy is None:  # a model with noise has no certificate
        values["step"] = np.asarray(result.trained.certificate.step).ravel().tolist()
    return json.loads(json.dumps(values))


def _compared(what: str, found: Any, known: Any) -> tuple[bool, str]:
    """Return whether two JSON values agree, apart from their origin, and a sentence about it."""
    agrees = _without_origin(found) == _without_origin(known)
    return agrees, f"{what} {'agrees with the exchanges' if agrees else 'differs from what the exchanges give'}"


def _without_origin(value: Any) -> Any:
    """Return JSON values without the versions of programs, which may differ when a study is verified."""
    if isinstance(value, Mapping):
        return {name: _without_origin(one) for name, one in value.items() if name not in ("provenance", "digest")}
    return [_without_origin(one) for one in value] if isinstance(value, list) else value


def _checked(file: Path, roster: Roster, received: Sequence[Received], result: Any) -> tuple[bool, str]:
    """Return whether a site's file, its signed log or the result that it was sent, agrees with the exchanges."""
    values = _json(file, "the file of a site")
    if not isinstance(values, dict) or values.get("format") != LOG:
        return _compared(f"the result in {file}", result, values)
    site = str(values.get("site"))
    if site not in roster.keys:
        raise InvalidInput(f"{file} is the log of a site that the study does not have: {shown(site)}")
    try:
        check_signature(Payload(values), LOG, roster.keys[site])
    except InvalidInput:
        raise InvalidInput(f"{file} was not signed by the key of site {site}") from None
    own = [one for one in received if one.site == site]
    if values.get("sent") != {str(one.number): hashlib.sha256(one.words.tobytes()).hexdigest() for one in own}:
        return False, f"the log of site {site} has other messages than the coordinator kept"
    return True, f"the {len(own)} messages in the log of site {site} are the ones that the coordinator kept"


def _json(path: Path, what: str) -> Any:
    try:
        return json_value(read_text(path_of(path), what))
    except ValueError as error:
        raise error if isinstance(error, InvalidInput) else InvalidInput(f"{path} is not JSON: {error}") from None
