"""`fedscaffold study join`: a site takes part."""

import re
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedscaffold.cli import table_options as tables
from fedscaffold.cli.commands.study.signals import ended_by_signal
from fedscaffold.cli.errors import refusals
from fedscaffold.core.errors import InvalidInput
from fedscaffold.data.encoding import Category
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.client.files import SiteFolder
from fedscaffold.federation.client.store import MemoryStore
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.study.messages import PHASE, refusal_in
from fedscaffold.federation.study.report.dry_run import dry_run
from fedscaffold.federation.study.report.site_page import write_site_page
from fedscaffold.federation.study.site import StudySite
from fedscaffold.flower.study.invite import Invite, fingerprint
from fedscaffold.flower.study.site_folder import ACCEPT, JoinedSite

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold study join bonn.invite --data visits.csv --dry-run\n\n"
    "  fedscaffold study join bonn.invite --data visits.csv --accept auto"
)
FINGERPRINT = re.compile("[0-9a-f]{32}")
PAGE, AGREEMENT = "site.html", "agreement.json"


def command(
    invite: Annotated[Path, typer.Argument(metavar="INVITE", help="The invitation that the coordinator sent.")],
    data: Annotated[Path, typer.Option(help="This site's table, a .csv or .parquet file.")],
    accept: Annotated[
        str, typer.Option(help="The agreement on columns and coding: ask before it is accepted, or auto.")
    ] = "ask",
    policy: Annotated[
        Path | None, typer.Option(help="A TOML file of what this site allows and tells.", show_default="safe")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder for key, log and state.", show_default="SITE-site beside INVITE")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="SITE=FINGERPRINT, from that site's people, for secure sums; once for each site."),
    ] = None,
    show: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent; send nothing.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="CSV files: delimiter, decimal or encoding; repeatable."),
    ] = None,
) -> None:
    """Take part in a study: check the table, make a key, show what will leave, and answer the coordinator.

    Runs until the study is over. After a stop, whatever its reason, the same command goes on. Everything that
    leaves is logged in audit.jsonl in the folder before it does.
    """
    console = Console(highlight=False)

    def tell(sentence: str) -> None:
        console.print(f"{datetime.now():%H:%M:%S} {sentence}", soft_wrap=True, markup=False)

    with refusals(interrupted="the same command joins again"), ended_by_signal(signal.SIGTERM, signal.SIGHUP):
        if accept not in ACCEPT:
            raise InvalidInput(f"--accept must be one of {', '.join(ACCEPT)}, got {accept!r}")
        invited = Invite.load(invite)
        joined = JoinedSite(
            folder=(folder or invite.parent / f"{invited.site}-site").resolve(), invite=invited, data=data,
            text=tables.csv_format(tables.parse_settings(settings, tables.CSV_SETTINGS)), policy=policy,
            accept=accept, peers=_peers(peer or [], invited),
        )  # fmt: skip
        site = joined.site(MemoryStore())
        schema = site.check(invited.settings)
        rows = "" if schema.n_rows is None else f", {schema.n_rows:,} rows"
        console.print(
            f"{data} fits the study {invited.study}: {len(schema.columns)} columns{rows}", soft_wrap=True
        )
        if show:
            shown = dry_run(site.table.load(), invited.settings, rules=site.rules, policy=site.policy)
            console.print(shown.text(), soft_wrap=True, markup=False)
            return
        if accept == "ask" and not sys.stdin.isatty():
            raise InvalidInput("--accept ask needs a terminal; take --accept auto, or read the study's file first")
        key = joined.save()
        site.store = joined.store()
        console.print(
            f"key: send {key} to the coordinator, and tell its fingerprint: {fingerprint(key.read_text())}\n"
            f"log: {joined.folder / 'audit.jsonl'} will have all that leaves this site; --dry-run shows it before",
            soft_wrap=True, markup=False,
        )  # fmt: skip
        if invited.settings.secure:
            _tell_fingerprint(site, console)
        if accept == "ask":
            site.accept = _asking(joined, console)
            if not joined.peers:
                site.accept_peers = _asking_about_peers(console)
        _serve(joined, site, tell)
        _write_page(joined)
    tell(
        f"the study is over; its result is in {joined.folder / 'result.json'}, what left in {joined.folder / PAGE}"
    )


def _serve(joined: JoinedSite, site: StudySite, tell: Callable[[str], None]) -> None:
    """Answer the coordinator until it has told the result."""
    from fedscaffold.flower.study.node import StudyNode

    last = [""]

    def answer(read: Callable[[], Payload]) -> Payload:
        reply = joined.answer(site, read)
        code = refusal_in(reply)
        phase = str(reply.values.get(PHASE, "train")) if code is None else f"refused: {code}"
        if phase != last[0]:
            last[0] = phase
            tell(phase)
        return reply

    node = StudyNode(
        address=joined.invite.address, authority=joined.invite.authority, private_key=joined.private_key,
        answer=answer, tell=tell,
    )  # fmt: skip
    node.run(lambda: last[0] == "finish")


def _asking(joined: JoinedSite, console: Console) -> Callable[[Agreement], bool]:
    def accept(agreement: Agreement) -> bool:
        path = joined.folder / AGREEMENT
        agreement.save(path)
        encoding = agreement.encoding
        console.print(f"\nThe coordinator proposes (all of it is in {path}):", soft_wrap=True, markup=False)
        for column in encoding.columns:
            told = f"categories {', '.join(map(str, column.values))}" if isinstance(column, Category) else "number"
            console.print(f"  {column.name}: {told}", soft_wrap=True, markup=False)
        classes = "number" if encoding.classes is None else ", ".join(map(str, encoding.classes))
        console.print(f"  to predict {encoding.target}: {classes}", soft_wrap=True, markup=False)
        return typer.confirm("Does this site take part?")

    return accept


def _peers(given: list[str], invite: Invite) -> dict[str, str]:
    """Fingerprints by site, from options such as graz='1234 5678 …'."""
    pairs = [one.partition("=") for one in given]
    wrong = [site for site, _, text in pairs if not site or not FINGERPRINT.fullmatch(text.replace(" ", ""))]
    if wrong:
        raise InvalidInput(f"--peer must be SITE=FINGERPRINT with 32 hexadecimal digits, got {wrong[0]!r}")
    if given and not invite.settings.secure:
        raise InvalidInput("--peer is for studies with secure sums, and this is none")
    return {site: text.replace(" ", "") for site, _, text in pairs}


def _tell_fingerprint(site: StudySite, console: Console) -> None:
    from fedscaffold.federation.study.secure.peers import own_fingerprint

    console.print(
        "secure sums: the coordinator will learn only sums over all sites. Tell the people of the other sites, "
        f"not by way of the coordinator, the fingerprint of this site: {own_fingerprint(site.store)}",
        soft_wrap=True, markup=False,
    )  # fmt: skip


def _asking_about_peers(console: Console) -> Callable[[Mapping[str, str]], bool]:
    def accept(fingerprints: Mapping[str, str]) -> bool:
        console.print("\nThe other sites of the secure sums have these fingerprints, says the coordinator:")
        for site, one in fingerprints.items():
            console.print(f"  {site}: {one}", soft_wrap=True, markup=False)
        return typer.confirm("Are they those that their people told you?")

    return accept


def _write_page(joined: JoinedSite) -> None:
    store = SiteFolder(joined.folder)
    accepted = store.load_note("accepted")
    agreement = None if accepted is None else Agreement.from_json(accepted["agreement"])
    if agreement is not None:
        agreement.save(joined.folder / AGREEMENT)
    write_site_page(
        joined.folder, joined.folder / PAGE, site=joined.invite.site, study=joined.invite.study,
        agreement=agreement, result=store.load_note("result"),
    )  # fmt: skip
