"""`study join` without a network: a node that conducts the study itself, with two more sites in its process."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedscaffold.federation.study.messages import SiteProblems, refusal_in

from fedscaffold.core.errors import FedScaffoldError
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.signing import Signer
from fedscaffold.federation.study.study import InProcess, conduct_study
from fedscaffold.flower.study import node
from fedscaffold.flower.study.study_file import StudyFile, StudyFolder
from tests.federation.study.secure import members
from tests.flower.study.studies import visits


class OwnCoordinator:
    """Takes the place of `StudyNode`: asks its own site what a coordinator would."""

    def __init__(self, *, answer: Callable[[Callable[[], Payload]], Payload], **connection: Any) -> None:
        self.answer, self.file = answer, Path(os.environ["STUDY_FILE"])

    def run(self, done: Callable[[], bool]) -> None:
        study, signer = StudyFile.load(self.file), Signer(StudyFolder(self.file).signing_key)
        others = members({site: visits(k + 1) for k, site in enumerate(study.sites[1:])}, study.settings)
        ask, own = self.answer, study.sites[0]

        class Both(InProcess):
            @property
            def sites(self) -> list[str]:
                return list(study.sites)

            def exchange(
                self, requests: Mapping[str, Payload], *, enough: int | None = None
            ) -> Mapping[str, Payload]:
                reply = ask(lambda: signer.sign(requests[own], own))
                if refusal_in(reply) is not None:
                    raise SiteProblems({own: str(refusal_in(reply))})
                rest = {site: payload for site, payload in requests.items() if site != own}
                return {own: reply, **super().exchange(rest, enough=enough)}

        try:
            conduct_study(Both(others), study.settings, name=study.name)
        except FedScaffoldError as error:
            print(f"coordinator: {error}")
            sys.exit(3)
        assert done()


if __name__ == "__main__":
    vars(node)["StudyNode"] = OwnCoordinator
    from fedscaffold.cli.start import main

    main()
