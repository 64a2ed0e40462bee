"""The Flower app of a study: a ServerApp that conducts it, and a ClientApp for nodes that Flower starts."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedscaffold.core.errors import FedScaffoldError
from fedscaffold.core.files import Fields, json_value
from fedscaffold.federation.audit import AuditLog
from fedscaffold.federation.signing import Signer
from fedscaffold.federation.study.report.status import StatusBoard
from fedscaffold.federation.study.settings import StudySettings
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.study import conduct_study
from fedscaffold.flower import wire
from fedscaffold.flower.keys import key_in_hexadecimal
from fedscaffold.flower.log import LOG
from fedscaffold.flower.study.site_folder import JoinedSite
from fedscaffold.flower.study.transport import FlowerTransport

STUDY, KEYS, EVENTS = "study.json", "keys.json", "events.jsonl"  # in the coordinator's folder
SAVED = "saved"  # the last event
FOLDER_KEY = "folder"  # of the run's and of a node's configuration

server = ServerApp()
client = ClientApp()


@server.main()
def conduct(grid: Grid, context: Context) -> None:
    """Conduct the study of a coordinator's folder, or go on with it; the result goes to the folder."""
    folder = Path(str(context.run_config[FOLDER_KEY]))
    fields = Fields(json_value((folder / STUDY).read_bytes()), str(folder / STUDY))
    settings = StudySettings.from_json(fields.value("settings"))
    name, sites = fields.text("name"), [str(site) for site in fields.items("sites")]
    absent: Any = fields.choice("missing", "wait", "leave out", "error")
    board = StatusBoard(folder, name=name, target=settings.target, tolerance=settings.known_tolerance, sites=sites)
    transport = FlowerTransport(
        grid,
        sites=sites,
        keys=lambda: accepted_keys(folder),
        signer=Signer(Path(fields.text("signing_key", longest=10_000))),
        leave_out_after=None if absent == "wait" else fields.number("timeout"),
        board=board,
        tell=event_log(folder),
    )
    try:
        conduct_study(
            transport, settings, name=name, folder=folder, board=board, absent=absent,
            save=lambda result: result.save(folder),
        )  # fmt: skip
        AuditLog(folder / EVENTS).write(SAVED, text=f"the result is in {folder}")
    except FedScaffoldError as error:  # the board has it, and whoever follows it
        LOG.error("the study stopped: %s", error)


@client.train()
def answer(message: Message, context: Context) -> Message:
    """Answer for the site whose folder the node's configuration names; agreements were accepted before."""
    joined, site = _site_of(Fields(context.node_config, "the node's configuration").text(FOLDER_KEY))
    reply = joined.answer(site, lambda: wire.from_one_record(message.content))
    return Message(wire.to_one_record(reply), reply_to=message)


_secure_sites: dict[str, StudySite] = {}  # whose keys for secure sums live as long as the process


def _site_of(folder: str) -> tuple[JoinedSite, StudySite]:
    joined = JoinedSite.load(folder)
    if not joined.invite.settings.secure:
        return joined, joined.site()
    return joined, _secure_sites.setdefault(folder, joined.site())


def accepted_keys(folder: Path) -> dict[str, str]:
    """The public keys of the sites' nodes in hexadecimal, by site, that the coordinator's folder has now."""
    fields = Fields(json_value((folder / KEYS).read_bytes()), str(folder / KEYS))
    return {site: key_in_hexadecimal(fields.text(site, longest=5000)) for site in fields.names()}


def event_log(folder: Path) -> Callable[[str], None]:
    """A function that writes a sentence to the coordinator's log of events."""
    log = AuditLog(folder / EVENTS)

    def tell(sentence: str) -> None:
        LOG.log(logging.INFO, "%s", sentence)
        log.write("told", text=sentence)

    return tell
