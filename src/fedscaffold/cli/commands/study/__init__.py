"""`fedscaffold study`: one model for sites that keep their tables, a command for each person who takes part."""

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from fedscaffold.cli import table_options as tables
from fedscaffold.cli.commands.status import EXIT_CODES
from fedscaffold.cli.errors import FAILED, RESUMABLE, refusals
from fedscaffold.cli.options import AsJson, print_table
from fedscaffold.core.checks import shown
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import write_text
from fedscaffold.data.encoding import Category
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.client.files import SiteFolder
from fedscaffold.federation.client.store import MemoryStore
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.study.messages import PHASE, refusal_in
from fedscaffold.federation.study.report.dry_run import dry_run
from fedscaffold.federation.study.report.site_page import write_site_page
from fedscaffold.federation.study.report.status import StudyStatus, study_status
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.study import conduct_study
from fedscaffold.flower.study.invite import Invite, coordinator_files, fingerprint, public_key_of, write_invites
from fedscaffold.flower.study.site_folder import ACCEPT, JoinedSite
from fedscaffold.flower.study.study_file import DEFAULT_ADDRESS, StudyFile, StudyFolder, split_names

PAGE, AGREEMENT = "site.html", "agreement.json"

app = typer.Typer(
    help="Run a study: one model for sites that keep their tables, which never leave them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)
StudyToml = Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study's file.")]


@app.command(
    "new",
    epilog=(
        "Examples:\n\n"
        "  fedscaffold study new cancer.toml\n\n"
        "  fedscaffold study new cancer.toml --target diagnosis --site bonn,graz,kiel "
        "--address study.example.org:9092"
    ),
)
def new(
    file: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The file to write.")],
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    site: Annotated[list[str] | None, typer.Option(help="Names of sites; also writes their invitations.")] = None,
    kind: tables.StudyKind = "logistic",
    l2: tables.TablePenalty = None,
    secure: tables.Secure = False,
    epsilon: tables.Epsilon = None,
    bounds: tables.BoundsFile = None,
    settings: tables.Settings = None,
    address: Annotated[
        str | None, typer.Option(help="HOST:PORT under which sites reach you.", show_default=DEFAULT_ADDRESS)
    ] = None,
) -> None:
    """Write the file of a new study, with a comment for every line, and invitations for its sites.

    On a terminal the command asks for missing values. Everything can be changed in the file until the
    study has begun.
    """
    with refusals(interrupted="nothing was written"):
        if file.exists():
            raise InvalidInput(f"{file} exists; give the name of a new file")
        asked = _Questions()
        target = target or asked.text("Which column is to be predicted?", "--target")
        sites = split_names(site) or split_names(
            [asked.text("Names of the sites, with commas between?", "--site")]
        )
        address = address or asked.text("Under which HOST:PORT do sites reach you?", None, DEFAULT_ADDRESS)
        asked.finish()
        chosen = tables.study_settings(
            settings, target=target, kind=kind, l2=l2, secure=secure, epsilon=epsilon, bounds=bounds
        )
        study = StudyFile(name=file.stem, settings=chosen, sites=tuple(sites), address=address)
        write_text(file, study.text())
        invites = write_invites(file, list(sites))
    typer.echo(f"{file}: change what you like, then send each site its invitation:")
    for path in invites:
        typer.echo(f"  {path}")
    typer.echo("A site joins with: fedscaffold study join INVITATION --data TABLE")


class _Questions:
    """Questions for missing options on a terminal; without one, an error that lists all of them."""

    def __init__(self) -> None:
        self.terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self.needed: list[str] = []

    def text(self, question: str, option: str | None, default: str | None = None) -> str:
        if self.terminal:
            return str(typer.prompt(question, default=default))
        if option is not None:
            self.needed.append(option)
        return default or ""

    def finish(self) -> None:
        if self.needed:
            raise InvalidInput(f"give {' and '.join(self.needed)}; on a terminal they are asked for")


@app.command("invite", epilog="Example:\n\n  fedscaffold study invite cancer.toml bonn graz")
def invite(
    file: StudyToml,
    site: Annotated[list[str], typer.Argument(metavar="SITE...", help="Names of sites, as in the file.")],
) -> None:
    """Write invitations: small files with the study's address, its certificate and what it asks for.

    An invitation holds no secret: who may take part is decided by `fedscaffold study accept`.
    """
    with refusals(interrupted="some invitations may be missing"):
        written = write_invites(file, site)
    for path in written:
        typer.echo(path)


@app.command(
    "join",
    epilog=(
        "Examples:\n\n"
        "  fedscaffold study join bonn.invite --data visits.csv --dry-run\n\n"
        "  fedscaffold study join bonn.invite --data visits.csv --accept auto\n\n"
        "  fedscaffold study join bonn.invite --data visits.csv --folder /mnt/share      by files, without a port"
    ),
)
def join(
    invite: Annotated[Path, typer.Argument(metavar="INVITE", help="The invitation that the coordinator sent.")],
    data: Annotated[Path, typer.Option(help="This site's table, a .csv or .parquet file.")],
    accept: Annotated[
        str, typer.Option(help="The agreement on columns and coding: ask before it is accepted, or auto.")
    ] = "ask",
    policy: Annotated[
        Path | None, typer.Option(help="A TOML file of what this site allows and sends.", show_default="safe")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Exchange messages as files in this shared folder.", show_default="over the network"),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Folder for key, log and state.", show_default="SITE-site beside INVITE")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="SITE=FINGERPRINT, from that site's people, for secure sums; once for each site."),
    ] = None,
    show: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent; send nothing.")] = False,
    settings: tables.CsvSettings = None,
) -> None:
    """Take part in a study: check the table, make a key, show what will leave, and answer the coordinator.

    Runs until the study is over. After a stop, whatever its reason, the same command continues. Everything that
    leaves is logged in audit.jsonl in the folder before it does.
    """
    with refusals(interrupted="the same command joins again"), ended_by_signal(signal.SIGTERM, signal.SIGHUP):
        if accept not in ACCEPT:
            raise InvalidInput(f"--accept must be one of {', '.join(ACCEPT)}, got {accept!r}")
        invited = Invite.load(invite)
        joined = JoinedSite(
            folder=(state or invite.parent / f"{invited.site}-site").resolve(), invite=invited, data=data,
            text=tables.csv_format(tables.parse_settings(settings, tables.CSV_SETTINGS)), policy=policy,
            accept=accept, peers=_peers(peer or [], invited),
        )  # fmt: skip
        site = joined.site(MemoryStore())
        schema = site.check(invited.settings)
        rows = "" if schema.n_rows is None else f", {schema.n_rows:,} rows"
        typer.echo(f"{data} fits the study {invited.study}: {len(schema.columns)} columns{rows}")
        if show:
            preview = dry_run(site.table.load(), invited.settings, rules=site.rules, policy=site.policy)
            typer.echo(preview.text())
            return
        if accept == "ask" and not sys.stdin.isatty():
            raise InvalidInput("--accept ask needs a terminal; pass --accept auto, or read the study's file first")
        key = joined.save()
        site.store = joined.store()
        typer.echo(
            f"key: send {key} to the coordinator, with its fingerprint: {fingerprint(key.read_text())}\n"
            f"log: {joined.folder / 'audit.jsonl'} will have all that leaves this site; --dry-run shows it before"
        )
        if invited.settings.secure:
            from fedscaffold.federation.study.secure.peers import own_fingerprint

            typer.echo(
                "secure sums: the coordinator will learn only sums over all sites. Give the people of the other "
                "sites, not by way of the coordinator, the fingerprint of this site: "
                f"{own_fingerprint(site.store)}"
            )
        if accept == "ask":
            site.accept = partial(_ask_about_agreement, joined.folder / AGREEMENT)
            if not joined.peers:
                site.accept_peers = _ask_about_peers
        _serve(joined, site, folder)
        _write_page(joined)
    say(
        f"the study is over; its result is in {joined.folder / 'result.json'}, what left in {joined.folder / PAGE}"
    )


def _serve(joined: JoinedSite, site: StudySite, shared: Path | None) -> None:
    """Answer the coordinator, by files in a shared folder if there is one, until it has sent the result."""
    last = [""]

    def answer(read: Callable[[], Payload]) -> Payload:
        reply = joined.answer(site, read)
        code = refusal_in(reply)
        phase = str(reply.values.get(PHASE, "train")) if code is None else f"refused: {code}"
        if phase != last[0]:
            last[0] = phase
            say(phase)
        return reply

    def is_over() -> bool:
        return last[0] == "finish"

    if shared is not None:
        from fedscaffold.federation.post import answer_post

        say(f"waiting for messages in {shared / joined.invite.study}")
        answer_post(
            shared / joined.invite.study, site=joined.invite.site, private_key=joined.private_key, answer=answer,
            done=is_over,
        )  # fmt: skip
        return
    from fedscaffold.flower.study.node import StudyNode

    node = StudyNode(
        address=joined.invite.address, authority=joined.invite.authority, private_key=joined.private_key,
        answer=answer, tell=say,
    )  # fmt: skip
    node.run(is_over)


def _ask_about_agreement(path: Path, agreement: Agreement) -> bool:
    """Write a proposed agreement to a file, show it, and return whether the site takes part."""
    agreement.save(path)
    encoding = agreement.encoding
    typer.echo(f"\nThe coordinator proposes (all of it is in {path}):")
    for column in encoding.columns:
        coded = f"categories {', '.join(map(str, column.values))}" if isinstance(column, Category) else "number"
        typer.echo(f"  {column.name}: {coded}")
    classes = "number" if encoding.classes is None else ", ".join(map(str, encoding.classes))
    typer.echo(f"  to predict {encoding.target}: {classes}")
    return typer.confirm("Does this site take part?")


def _ask_about_peers(fingerprints: Mapping[str, str]) -> bool:
    """Show the fingerprints of the other sites, and return whether they are the right ones."""
    typer.echo("\nThe other sites of the secure sums have these fingerprints, according to the coordinator:")
    for site, one in fingerprints.items():
        typer.echo(f"  {site}: {one}")
    return typer.confirm("Are they the ones that their people gave you?")


def _peers(given: list[str], invite: Invite) -> dict[str, str]:
    """Return fingerprints by site, from options such as graz='1234 5678 …'."""
    pairs = [one.partition("=") for one in given]
    wrong = [
        site for site, _, text in pairs if not site or not re.fullmatch("[0-9a-f]{32}", text.replace(" ", ""))
    ]
    if wrong:
        raise InvalidInput(f"--peer must be SITE=FINGERPRINT with 32 hexadecimal digits, got {wrong[0]!r}")
    if given and not invite.settings.secure:
        raise InvalidInput("--peer is for studies with secure sums, which this one is not")
    return {site: text.replace(" ", "") for site, _, text in pairs}


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


@app.command("accept", epilog="Example:\n\n  fedscaffold study accept cancer.toml bonn.pub graz.pub")
def accept(
    file: StudyToml,
    key: Annotated[list[str], typer.Argument(metavar="KEY...", help="The files SITE.pub that sites sent.")],
    replace: Annotated[bool, typer.Option(help="Accept a new key of a site that has one.")] = False,
) -> None:
    """Accept the keys of sites: from now on their nodes may connect, also while the study runs.

    Compare the fingerprint with the one that the site was shown, over the telephone for example: a key may have
    been exchanged on its way.
    """
    with refusals(interrupted="some keys may be missing"):
        study, folder = StudyFile.load(file), StudyFolder(file)
        accepted = folder.accepted()
        found = dict(public_key_of(each) for each in key)
        problems = [
            f"{file} has no site called {site}; its sites are {', '.join(study.sites)}"
            for site in found
            if site not in study.sites
        ]
        if not replace:
            problems += [
                f"site {site} has another key already; --replace accepts the new one in its place"
                for site, one in found.items()
                if accepted.get(site, one) != one
            ]
        both = {**accepted, **found}
        if len({fingerprint(one) for one in both.values()}) < len(both):
            problems.append("two sites have the same key")
        if problems:
            raise InvalidInput("; ".join(problems))
        for site, one in found.items():
            folder.accept(site, one)
            typer.echo(f"accepted {site}, whose key has the fingerprint {fingerprint(one)}")
    waiting = [site for site in study.sites if site not in folder.accepted()]
    typer.echo(f"not accepted yet: {', '.join(waiting)}" if waiting else "all sites are accepted")


@app.command(
    "run",
    epilog=(
        "Examples:\n\n"
        "  fedscaffold study run cancer.toml --out cancer\n\n"
        "  fedscaffold study run cancer.toml --out cancer --dashboard localhost:0      a live page\n\n"
        "  fedscaffold study run cancer.toml --out cancer --folder /mnt/share      by files, without a port"
    ),
)
def run(
    file: StudyToml,
    out: Annotated[Path, typer.Option(help="Folder for the model, the report and everything the study keeps.")],
    folder: Annotated[
        Path | None,
        typer.Option(help="Exchange messages as files in this shared folder.", show_default="over the network"),
    ] = None,
    dashboard: Annotated[
        str | None, typer.Option(help="HOST:PORT of a live page about the study; port 0 is any free one.")
    ] = None,
) -> None:
    """Conduct the study: wait for the sites, agree, train, certify, evaluate, report.

    After any stop, by Ctrl-C, a crash or a reboot, the same command continues. Every minute it prints which sites
    it waits for.
    """
    with refusals(interrupted=RESUMABLE), ended_by_signal(signal.SIGTERM, signal.SIGHUP), ExitStack() as stack:
        if dashboard is not None:
            from fedscaffold.dashboard import serve_dashboard

            host, _, port = dashboard.rpartition(":")
            if not host or not port.isdecimal() or int(port) > 65535:
                raise InvalidInput(f"dashboard must be HOST:PORT, got {dashboard!r}")
            page = serve_dashboard(out, host=host, port=int(port))
            say(f"The live page is at {stack.enter_context(page)}")
        found = _conduct(file, out, folder)
    print_result(found, out)
    if found.state == "stopped":
        raise typer.Exit(FAILED)


def _conduct(file: Path, out: Path, shared: Path | None) -> StudyStatus:
    """Conduct a study over the network, or by files in a shared folder; return its status at the end."""
    if shared is None:
        from fedscaffold.flower.study.link import CoordinatorLink

        return CoordinatorLink(file, out, say).run(ProgressLines())
    from fedscaffold.federation.post import PostTransport

    study, keys = StudyFile.load(file), StudyFolder(file)
    transport = PostTransport(
        shared / study.name, sites=study.sites, keys=keys.accepted, signer=coordinator_files(study, keys)[1],
        most_seconds=None if study.missing == "wait" else study.timeout, say=say,
    )  # fmt: skip
    conduct_study(
        transport, study.settings, name=study.name, folder=out, absent=study.missing,
        save=lambda result: result.save(out),
    )  # fmt: skip
    return study_status(out)


@app.command(
    "status",
    epilog=(
        "Examples:\n\n"
        "  fedscaffold study status cancer\n\n"
        "  fedscaffold study status cancer --json\n\n"
        "Exit codes: 0 the study has finished, 1 it was stopped by an error or killed, 2 this is not a study's "
        "folder, 3 it is running."
    ),
)
def status(
    folder: Annotated[Path, typer.Argument(help="The folder that was given to `study run --out`.")],
    as_json: AsJson = False,
) -> None:
    """Show the state of a study: its phase, the error against the tolerance, which sites are there or refused."""
    with refusals(interrupted="nothing was changed"):
        found = study_status(folder)
        if as_json:
            typer.echo(json.dumps(found.to_json(), ensure_ascii=True))
        else:
            print_table(f"study {found.name}", _facts(found))
    raise typer.Exit(EXIT_CODES[found.state])


def _facts(found: StudyStatus) -> Iterator[tuple[str, str]]:
    """Return what the table shows."""
    yield "state", found.state
    yield "phase", found.phase
    yield "exchanges", f"{found.exchanges:,}"
    if found.current_error is not None:
        yield "error", f"{found.current_error:.2g} (tolerance {found.tolerance})"
    for name, site in found.sites.items():
        yield f"site {name}", site.state + (f": {shown(site.why, longest=300)}" if site.why else "")
    for one in found.refused:
        yield f"refused {shown(one['who'])}", shown(one["why"], longest=300)
    if found.error:
        yield "stopped by", shown(found.error, longest=500)


def say(sentence: str) -> None:
    """Print a sentence with the time of day."""
    typer.echo(f"{datetime.now():%H:%M:%S} {sentence}")


class ProgressLines:
    """Callback that prints phases, decisions and errors of a study when they change."""

    def __init__(self) -> None:
        self.phase, self.points, self.notes = "", 0, 0

    def __call__(self, status: StudyStatus) -> None:
        """Print the news of a status."""
        if status.phase != self.phase:
            self.phase = status.phase
            say(self.phase)
        for note in status.notes[self.notes :]:
            say(note)
        self.notes = len(status.notes)
        if len(status.history) > self.points and status.current_error is not None:
            self.points = len(status.history)
            aim = "" if status.aim is None else f", the aim is {status.aim:.2g}"
            say(f"exchange {status.rounds}: error {status.current_error:.2g}{aim}")


def print_result(found: StudyStatus, out: Path, *, kept: bool = True) -> None:
    """Print the coefficients and where everything is, or why the study stopped."""
    if found.state == "stopped":
        typer.echo(f"error: {found.error}", err=True)
        return
    summary = out / "summary.txt"
    if summary.exists():
        typer.echo(summary.read_text(encoding="utf-8"))
    if kept:
        typer.echo(f"Model, coefficients and report are in {out}; open {out / 'report.html'}")


@contextmanager
def ended_by_signal(*numbers: int) -> Iterator[None]:
    """Treat these signals as an interrupt."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
