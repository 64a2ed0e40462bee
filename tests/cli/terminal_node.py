"""`study join` without a network: a node that conducts the study itself, with two more sites in its process."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import FedScaffoldError
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.study.roster import sign
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.study import conduct
from fedscaffold.federation.study.transport import InProcess, check_replies
from fedscaffold.flower.study import fleet
from fedscaffold.flower.study.study_file import StudyFile, StudyFolder
from tests.flower.study.studies import visits


def own_coordinator(
    connection: Any, *, answer: Callable[[Payload], Payload], done: Callable[[], bool], say: Any
) -> None:
    """Take the place of `answer_flower`: ask the own site what a coordinator would."""
    file = Path(os.environ["STUDY_FILE"])
    plan, signer = StudyFile.load(file).plan, StudyFolder(file).signer()
    own, others = plan.sites[0], {site: StudySite(site, visits(k + 1)) for k, site in enumerate(plan.sites[1:])}

    class Both(InProcess):
        def exchange(self, requests: Mapping[str, Payload]) -> Mapping[str, Payload]:
            reply = check_replies({own: answer(sign(requests[own], own, signer))})
            return {**reply, **super().exchange({site: one for site, one in requests.items() if site != own})}

    try:
        conduct(plan, Both(others))
    except FedScaffoldError as error:
        print(f"coordinator: {error}")
        sys.exit(3)
    assert done()


if __name__ == "__main__":
    vars(fleet)["answer_flower"] = own_coordinator
    from fedscaffold.cli.start import main

    main()
