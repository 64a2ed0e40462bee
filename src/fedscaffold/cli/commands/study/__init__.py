"""`fedscaffold study`: one model for sites that keep their tables, a command for each person who takes part.

Modules that need cryptography or Flower are loaded by the commands that use them, so that the help always works.
"""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedscaffold.cli.commands.status import EXIT_CODES
from fedscaffold.cli.errors import FAILED, RESUMABLE, refusals
from fedscaffold.cli.options import CSV_SETTINGS, AsJson, CsvSettings, csv_format, parse_settings, print_table
from fedscaffold.cli.study_options import EPILOG, plan_from, with_study_options
from fedscaffold.core.checks import not_negative, shown
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import write_text
from fedscaffold.data.settings import split_names

if TYPE_CHECKING:
    from fedscaffold.federation.messages import Payload
    from fedscaffold.federation.study.roster import Roster
    from fedscaffold.federation.study.site import StudySite
    from fedscaffold.federation.study.status import StatusBoard
    from fedscaffold.flower.study.study_file import JoinedSite

PAGE = "site.html"
ACCEPT = ("ask", "auto")
LONGEST_WAIT = 168.0  # hours: a coordinator that is away over a weekend, or waits for another site, is waited for

app = typer.Typer(
    help="Run a study: one model for sites that keep their tables, which never leave them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)
StudyToml = Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study's file.")]
Shared = Annotated[
    Path | None,
    typer.Option(
        "--folder", help="Exchange messages as files in this shared folder.", show_default="over the network"
    ),
]


@app.command(
    "new",
    epilog=(
        "Examples:\n\n"
        "  fedscaffold study new cancer.toml --target diagnosis --like example.csv --site bonn,graz,kiel\n\n"
        "  fedscaffold study new falls.toml --target falls --kind poisson --features age,ward "
        f"--set categorical=ward --site bonn,graz,kiel --address study.example.org:9092\n\n{EPILOG}"
    ),
)
@with_study_options
def new(
    file: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The file to write.")],
    chosen: Callable[[], dict[str, Any]],
    site: Annotated[list[str] | None, typer.Option(help="Names of the sites, with commas.")] = None,
    like: Annotated[
        Path | None, typer.Option(help="A table with the sites' columns, of which only names and types are read.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Rows of all sites together, which are public under --epsilon.", min=1)
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="HOST:PORT under which sites reach you.", show_default="127.0.0.1:9092")
    ] = None,
) -> None:
    """Write the file of a new study, with a comment for every setting, and invitations for its sites.

    Everything can be changed in the file until sites have joined; `study invite` writes the invitations again.
    """
    with refusals(interrupted="nothing was written"):
        from fedscaffold.flower.study.study_file import StudyFile, run_settings, write_invites

        if file.exists():
            raise InvalidInput(f"{file} exists; give the name of a new file")
        settings = chosen()
        sites = split_names(",".join(site or ()))
        missing = [
            f"--{name}" for name, value in (("target", settings.get("target")), ("site", sites)) if not value
        ]
        if missing:
            example = f"fedscaffold study new {file.name} --target ill --like example.csv --site bonn,graz,kiel"
            raise InvalidInput(f"give {' and '.join(missing)}, for example: {example}")
        plan = plan_from(settings, name=file.stem, sites=sites, like=like, rows=rows)
        write_text(file, StudyFile(plan, run_settings({} if address is None else {"address": address})).text())
        invites = write_invites(file)
    typer.echo(f"{file}: plan {plan.fingerprint}\nsend each site its invitation:")
    for path in invites:
        typer.echo(f"  {path}")
    typer.echo("A site joins with: fedscaffold study join INVITATION --data TABLE")


@app.command("invite", epilog="Example:\n\n  fedscaffold study invite cancer.toml bonn graz")
def invite(
    file: StudyToml,
    site: Annotated[
        list[str] | None, typer.Argument(metavar="SITE...", help="Names of sites; all if none.")
    ] = None,
) -> None:
    """Write invitations: small files with the whole plan, the coordinator's address, certificate and public key.

    An invitation holds no secret: `fedscaffold study accept` decides who may take part.
    """
    with refusals(interrupted="some invitations may be missing"):
        from fedscaffold.flower.study.study_file import StudyFile, write_invites

        written = write_invites(file, site)
        typer.echo(f"plan {StudyFile.load(file).plan.fingerprint}")
    for path in written:
        typer.echo(path)


@app.command(
    "join",
    epilog=(
        "Examples:\n\n"
        "  fedscaffold study join cancer-bonn.invite --data visits.csv --dry-run\n\n"
        "  fedscaffold study join cancer-bonn.invite --data visits.csv --accept auto\n\n"
        "  fedscaffold study join cancer-bonn.invite --data visits.csv --folder /mnt/share    # by files\n\n"
        "--set takes delimiter, decimal and encoding of CSV files."
    ),
)
def join(
    invite: Annotated[Path, typer.Argument(metavar="INVITE", help="The invitation that the coordinator sent.")],
    data: Annotated[Path, typer.Option(help="This site's table, a .csv or .parquet file.")],
    accept: Annotated[
        str, typer.Option(help="ask before the plan and the other sites are accepted, or auto.")
    ] = "ask",
    policy: Annotated[
        Path | None,
        typer.Option(help="A TOML file of this site's limits.", show_default="safe"),
    ] = None,
    folder: Shared = None,
    state: Annotated[
        Path | None, typer.Option(help="Folder for key, log and state.", show_default="STUDY-SITE beside INVITE")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="SITE=FINGERPRINT of another site's key, from its people; repeatable."),
    ] = None,
    wait: Annotated[
        float, typer.Option(help="Hours without any message after which this site stops.", min=0.0)
    ] = LONGEST_WAIT,
    keep: Annotated[
        bool, typer.Option("--keep-numbers", help="Also keep this site's numbers, by name, in its log.")
    ] = False,
    show: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent; send nothing.")] = False,
    settings: CsvSettings = None,
) -> None:
    """Take part in a study: check the table, show what will leave, ask, make a key, and answer the coordinator.

    Runs until the study is over. After a stop, whatever its reason, the same command continues. Everything that
    leaves is logged in audit.jsonl in the folder before it does.
    """
    with refusals(interrupted="the same command joins again"), ended_by_signal(signal.SIGTERM, signal.SIGHUP):
        from fedscaffold.federation.study.dry_run import dry_run
        from fedscaffold.federation.study.roster import fingerprint
        from fedscaffold.federation.study.rows import TableFile
        from fedscaffold.flower.study.study_file import Invite, JoinedSite

        if accept not in ACCEPT:
            raise InvalidInput(f"--accept must be one of {', '.join(ACCEPT)}, got {accept!r}")
        not_negative("--wait", wait)  # NaN hours would never end
        invited = Invite.load(invite)
        plan = invited.plan
        table = TableFile(data, csv_format(parse_settings(settings, CSV_SETTINGS)))
        joined = JoinedSite(
            folder=(state or invite.parent / f"{plan.name}-{invited.site}").resolve(), invite=invited,
            table=table, policy=policy, peers=_peers(peer or [], plan.sites), keep_numbers=keep,
        )  # fmt: skip
        typer.echo(f"study {plan.name}, plan {plan.fingerprint}: compare this with the coordinator's")
        again = joined.known
        if problems := joined.problems():
            raise InvalidInput("; ".join(problems))
        if show or not again:
            typer.echo(dry_run(joined.table.load(), plan).text())
        if show:
            return
        if accept == "ask":
            if not sys.stdin.isatty():
                raise InvalidInput("--accept ask needs a terminal; pass --accept auto to accept the plan above")
            if not again and not typer.confirm("Does this site take part?"):
                raise InvalidInput("nothing was written, and nothing has left this site")
            joined.accept_roster = _ask_about_roster
        site = joined.open()
        typer.echo(
            f"key: send {joined.public_key} to the coordinator, with its fingerprint, and this also to the other "
            f"sites' people: {fingerprint(site.public_key)}\n"
            f"log: {joined.folder / 'audit.jsonl'} will have all that leaves this site"
        )
        _serve(joined, site, folder, wait)
        _finish(joined, site)
    say(shown(joined.over, longest=1000))
    if joined.stopped:
        raise typer.Exit(FAILED)
    say(f"its result is in {joined.folder / 'result.json'}, what left in {joined.folder / PAGE}")


def _serve(joined: "JoinedSite", site: "StudySite", shared: Path | None, hours: float) -> None:
    """Answer the coordinator, by files in a shared folder if there is one, until the study is over.

    Raise `InvalidInput` after some hours without a message: the study may be over.
    """
    last, heard = [""], time.monotonic()

    def answer(request: "Payload") -> "Payload":
        nonlocal heard
        heard = time.monotonic()
        reply = joined.answer(site, request)
        why = joined.why_rejected(site, reply)
        now = str(request.values.get("phase", request.values.get("study-message", ""))) if why is None else why
        if now != last[0]:
            last[0] = now
            say(shown(now, longest=60) if why is None else f"rejected: {shown(why, longest=1000)}")
        return reply

    def done() -> bool:
        return bool(joined.over) or time.monotonic() > heard + 3600.0 * hours

    if shared is not None:
        from fedscaffold.federation.study.transport import answer_post

        say(f"waiting for messages in {shared / joined.invite.plan.name}")
        answer_post(shared / joined.invite.plan.name, site=site.name, answer=answer, done=done)
    else:
        from fedscaffold.flower.study.fleet import FleetConnection, answer_flower

        invite = joined.invite
        connection = FleetConnection(address=invite.address, authority=invite.authority, key=site.key)
        answer_flower(connection, answer=answer, done=done, say=say)
    if not joined.over:
        raise InvalidInput(
            f"no message has come for {hours:g} hours; the study may be over: ask the coordinator, whose command "
            "`study run` sends the result again; the same command joins again"
        )


def _finish(joined: "JoinedSite", site: "StudySite") -> None:
    """Write the site's page, and the signed log that the coordinator's folder can be verified with."""
    from fedscaffold.federation.study.site_page import write_site_page
    from fedscaffold.federation.verify import signed_log

    write_text(joined.folder / f"{site.name}.log.json", json.dumps(signed_log(site), indent=1))
    if not joined.stopped:
        write_site_page(site.store, joined.folder / PAGE)


def _ask_about_roster(roster: "Roster") -> bool:
    """Show the fingerprints of all sites, and return whether they are the right ones."""
    typer.echo("\nThe sites have keys with these fingerprints, according to the coordinator:")
    for site, one in roster.fingerprints.items():
        typer.echo(f"  {site}: {one}")
    return typer.confirm("Are they the ones that their people gave you?")


def _peers(given: list[str], sites: tuple[str, ...]) -> dict[str, str]:
    """Return fingerprints by site, from options such as graz=SHA256:…"""
    pairs = [one.partition("=") for one in given]
    wrong = [f"{site}={text}" for site, _, text in pairs if site not in sites or not text.startswith("SHA256:")]
    if wrong:
        raise InvalidInput(
            f"--peer must be SITE=SHA256:… of a site of the plan, got {', '.join(map(shown, wrong))}"
        )
    return {site: text for site, _, text in pairs}


@app.command("accept", epilog="Example:\n\n  fedscaffold study accept cancer.toml bonn.pub graz.pub")
def accept(
    file: StudyToml,
    key: Annotated[list[str], typer.Argument(metavar="KEY...", help="The files SITE.pub that sites sent.")],
    replace: Annotated[bool, typer.Option("--replace", help="Accept a new key of a site that has one.")] = False,
) -> None:
    """Accept the keys of sites; a study begins when all its sites' keys are accepted.

    Compare the fingerprint with the one that the site was shown, over the telephone for example: a key may have
    been exchanged on its way.
    """
    with refusals(interrupted="some keys may be missing"):
        from fedscaffold.federation.study.roster import fingerprint
        from fedscaffold.flower.study.study_file import StudyFile, StudyFolder, public_key_of

        plan = StudyFile.load(file).plan
        accepted = StudyFolder(file).accept(plan, key, replace=replace)
        for site in (public_key_of(each)[0] for each in key):
            typer.echo(f"accepted {site}, whose key has the fingerprint {fingerprint(accepted[site])}")
    waiting = [site for site in plan.sites if site not in accepted]
    typer.echo(f"not accepted yet: {', '.join(waiting)}" if waiting else "all sites are accepted")


@app.command(
    "run",
    epilog=(
        "Examples:\n\n"
        "  fedscaffold study run cancer.toml --out cancer\n\n"
        "  fedscaffold study run cancer.toml --out cancer --dashboard localhost:0    # a live page\n\n"
        "  fedscaffold study run cancer.toml --out cancer --folder /mnt/share    # by files, without a port"
    ),
)
def run(
    file: StudyToml,
    out: Annotated[Path, typer.Option(help="Folder for the model, the report and everything the study keeps.")],
    folder: Shared = None,
    dashboard: Annotated[
        str | None, typer.Option(help="HOST:PORT of a live page about the study; port 0 is any free one.")
    ] = None,
) -> None:
    """Conduct the study: wait for the sites, complete the plan, train, certify, evaluate, report.

    After any stop, by Ctrl-C, a crash or a reboot, the same command continues. Every minute it prints which sites
    it waits for.
    """
    with refusals(interrupted=RESUMABLE), ended_by_signal(signal.SIGTERM, signal.SIGHUP), ExitStack() as stack:
        from fedscaffold.flower.study.run import conduct_study

        if dashboard is not None:
            from fedscaffold.dashboard import serve_dashboard

            host, _, port = dashboard.rpartition(":")
            if not host or not port.isdecimal() or int(port) > 65535:
                raise InvalidInput(f"dashboard must be HOST:PORT, got {dashboard!r}")
            page = serve_dashboard(out, host=host, port=int(port))
            say(f"The live page is at {stack.enter_context(page)}")
        conduct_study(file, out, shared=folder, say=say, board_of=SpokenBoard)
        print_result(out)


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
    """Show the state of a study: its phase, the error against the tolerance, which sites are there or rejected."""
    with refusals(interrupted="nothing was changed"):
        from fedscaffold.federation.study.status import study_status

        found = study_status(folder)
        if as_json:
            typer.echo(json.dumps(found.model_dump(mode="json"), ensure_ascii=True))
        else:
            print_table(f"study {found.name}", _facts(found))
    raise typer.Exit(EXIT_CODES[found.state])


def _facts(found: Any) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table about a study."""
    yield "state", found.state
    yield "phase", found.phase
    yield "exchanges", f"{found.exchanges:,}"
    if found.current_error is not None:
        yield "error", f"{found.current_error:.2g} (tolerance {found.tolerance})"
    for name, site in found.sites.items():
        yield f"site {name}", site.state + (f": {shown(site.why, longest=300)}" if site.why else "")
    if found.error:
        yield "stopped by", shown(found.error, longest=500)


@app.command(
    "verify",
    epilog=(
        "Examples:\n\n"
        "  fedscaffold study verify cancer\n\n"
        "  fedscaffold study verify cancer bonn.log.json graz.log.json kiel/result.json\n\n"
        "Exit codes: 0 everything agrees, 1 something does not, 2 this is not a study's folder."
    ),
)
def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="The folder that was given to `study run --out`.")
    ],
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE...", help="Signed logs or results from sites.")
    ] = None,
) -> None:
    """Compute a study's model and certificate again from what the coordinator kept, without any site, and compare.

    Sites that publish their signed logs let everybody check that the coordinator used exactly their messages.
    """
    with refusals(interrupted="nothing was changed"):
        from fedscaffold.federation.verify import verify as verified

        found = verified(folder, files or ())
        for sentence in found.agreed:
            typer.echo(f"ok: {sentence}")
        for sentence in found.problems:
            typer.echo(f"PROBLEM: {sentence}", err=True)
    if found.problems:
        raise typer.Exit(FAILED)


def say(sentence: str) -> None:
    """Print a sentence with the time of day."""
    typer.echo(f"{datetime.now():%H:%M:%S} {sentence}")


class SpokenBoard:
    """A status board that also prints phases, decisions and errors.

    Parameters
    ----------
    board
        The board.
    """

    def __init__(self, board: "StatusBoard") -> None:
        self._board, self._phase = board, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._board, name)

    def phase(self, name: str) -> None:
        """Print a phase that begins."""
        if name != self._phase:
            self._phase = name
            say(name)
        self._board.phase(name)

    def note(self, sentence: str) -> None:
        """Print a decision."""
        say(sentence)
        self._board.note(sentence)

    def error(self, point: Any) -> None:
        """Print the distance to the pooled model."""
        in_errors = point.standard_errors is not None
        value = point.standard_errors if in_errors else point.relative
        say(f"error {value:.2g}{' standard errors' if in_errors else ''}")
        self._board.error(point)


def print_result(out: Path, *, kept: bool = True) -> None:
    """Print the coefficients, and where everything is."""
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
