"""Conduct a study as its coordinator: in this process, over the network or by files in a shared folder."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import CheckpointMismatch, FedScaffoldError, InUse, InvalidInput
from fedscaffold.core.files import folder_at
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.remote import PostTransport, RemoteTransport
from fedscaffold.federation.study.site import DOCUMENT, KIND
from fedscaffold.federation.study.status import StatusBoard
from fedscaffold.federation.study.study import conduct
from fedscaffold.federation.study.transport import private_folder
from fedscaffold.federation.verify import begin_bundle, save_result
from fedscaffold.flower.study.study_file import STOPPED, StudyFile, StudyFolder
from fedscaffold.models.fit import Fit

KEY_INTERVAL = 1.0  # seconds between two looks for keys that were accepted meanwhile
STOP_SECONDS = 5.0  # for sites to learn that a study has stopped


def conduct_study(
    file: Path,
    out: Path,
    *,
    shared: Path | None = None,
    say: Callable[[str], None] = lambda sentence: None,
    board_of: Callable[[StatusBoard], Any] = lambda board: board,
) -> Fit:
    """Conduct the study of a file, or go on with it; the result is written to the coordinator's folder.

    Parameters
    ----------
    file
        STUDY.toml.
    out
        The coordinator's folder.
    shared
        A folder by which messages travel as files; None for the network.
    say
        Called with a sentence about whatever happens.
    board_of
        Wraps the board that shows how the study stands.

    Raises
    ------
    FedScaffoldError
        If the study stops; a message about it goes to the sites that can be reached.
    """
    study, folder = StudyFile.load(file), StudyFolder(file)
    private_folder(out)  # a folder that cannot be made is an error before any site is waited for
    if shared is not None:
        folder_at(shared)
    keys = _all_keys(study, folder, say)
    begin_bundle(out, study.plan, keys)
    board = board_of(StatusBoard(out, study.plan))
    more: dict[str, Any] = {
        "sites": study.plan.sites, "keys": keys, "signer": folder.signer(), "timeout": study.run.patience,
        "linger": study.run.linger,
        "say": say, "on_site": board.site,
    }  # fmt: skip
    with ExitStack() as stack:
        transport: RemoteTransport
        if shared is not None:
            transport = PostTransport(shared / study.plan.name, **more)
        else:
            from fedscaffold.flower.study.fleet import FleetServer
            from fedscaffold.flower.study.transport import FlowerTransport

            certificates = folder.certificates(study.run.host)
            server = FleetServer(
                host=study.run.listen, port=study.run.port, certificates=certificates, log=out / "flower.log"
            )
            transport = FlowerTransport(stack.enter_context(server), **more)
            say(f"listening on {study.run.address} with TLS, for {len(keys)} accepted keys")
        try:
            return conduct(
                study.plan, transport, keys=keys, folder=out, board=board,
                save=lambda result: save_result(out, result),
            )  # fmt: skip
        except (InUse, CheckpointMismatch):
            raise
        except FedScaffoldError as error:
            document = json.dumps({"study": study.plan.name, STOPPED: f"the study has stopped: {error}"})
            last = Payload({KIND: "result", DOCUMENT: document})
            transport.linger = STOP_SECONDS
            transport.deliver(dict.fromkeys(study.plan.sites, last))
            raise


def _all_keys(study: StudyFile, folder: StudyFolder, say: Callable[[str], None]) -> dict[str, str]:
    """Return the keys of all sites, once they are accepted; raise if some are not and absent is "error"."""
    said: list[str] = []
    while True:
        keys = folder.accepted()
        missing = [site for site in study.plan.sites if site not in keys]
        if not missing:
            return {site: keys[site] for site in study.plan.sites}
        sentence = f"no key has been accepted yet of {', '.join(missing)}"
        if study.run.absent == "error":
            raise InvalidInput(f"{sentence}; `fedscaffold study accept` accepts keys")
        if missing != said:
            say(f"{sentence}; waiting")
            said = missing
        time.sleep(KEY_INTERVAL)
