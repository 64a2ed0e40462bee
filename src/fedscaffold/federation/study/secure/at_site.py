"""A site's numbers for the questions of secure sums, by phase."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscaffold.core.files import Fields
from fedscaffold.core.privacy import ClientLevel
from fedscaffold.core.types import Array
from fedscaffold.federation.client.protection import PartOfSum
from fedscaffold.federation.client.requests import handle_request
from fedscaffold.federation.messages import StateLost, TrainRequest
from fedscaffold.federation.payloads import Payload, unpack_request
from fedscaffold.federation.refusals import Refusal, RefusalCode, parsed
from fedscaffold.federation.secure_sum.fixed_point import FixedPoint
from fedscaffold.federation.study.certificate import SumsAsked
from fedscaffold.federation.study.evaluate import evaluate_site
from fedscaffold.federation.study.measure import measure_site
from fedscaffold.federation.study.messages import StudyMessage, address_of, is_study_message, unpack
from fedscaffold.federation.study.private.at_site import check_answered
from fedscaffold.federation.study.report.site_page import KEPT
from fedscaffold.federation.study.secure import numbers
from fedscaffold.federation.study.secure.blocks import SumBlock
from fedscaffold.federation.study.secure.ranges import largest_part
from fedscaffold.federation.study.secure.tables import TableWords, read_labels
from fedscaffold.methods import GradientScaffold, Scaffold

if TYPE_CHECKING:
    from fedscaffold.federation.study.site import StudySite

WORD = np.uint64


def numbers_at_site(
    site: "StudySite", question: Payload, told: Fields, blocks: Sequence[SumBlock]
) -> Mapping[str, Any]:
    """The site's numbers for a question, by block; they leave the site masked only."""
    address = parsed(lambda: address_of(question))
    if not is_study_message(question):
        return _change(site, question, told, blocks)
    message = parsed(lambda: unpack(question, "the coordinator"))
    check_answered(message.phase, site.policy)
    if message.phase == "prepare":
        words = _table_words(site, message)
        least = max(site.rules.min_cell, words.settings.min_cell)
        return {"table": words.encode(site.current_table, min_cell=least)}
    if message.phase == "measure":
        problem = site.agreed_rows(address).problem
        measured = measure_site(problem, by_the_clock=site.rules.by_the_clock)
        return numbers.numbers_of_measurements(measured)
    if message.phase == "sums":
        asked, reply = parsed(lambda: SumsAsked.from_json(message.body)), site.sums_at(message, address)
        return numbers.numbers_of_sums(asked, reply.body, reply.arrays)
    if message.phase == "evaluate":
        left_out, judged, theta, least = site.rows_to_judge(message, address)
        if left_out is None:
            return {one.name: np.zeros(one.length, None if one.limit else WORD) for one in blocks}
        own = evaluate_site(left_out, judged, theta, min_cell=least)
        rows = int(site.agreed_rows(address).problem.sizes[0])
        site.store.audit.write(KEPT, phase="evaluate", n_rows=rows, values=own.to_json())
        return numbers.numbers_of_evaluation(left_out, judged, theta)
    raise Refusal(RefusalCode.BAD_REQUEST, f"{message.phase} is no sum")


def _table_words(site: "StudySite", message: StudyMessage) -> TableWords:
    settings = site.settings_in(message)

    def read() -> TableWords:
        fields = Fields(message.body, "the request")
        kinds: Any = fields.fields("kinds").as_dict()
        labels = read_labels(fields.value("labels"), "the request", kinds, settings)
        return TableWords(kinds=kinds, settings=settings, labels=labels)

    return parsed(read)


def _change(site: "StudySite", question: Payload, told: Fields, blocks: Sequence[SumBlock]) -> dict[str, Array]:
    """w_c (θ_c − θ) after local steps; what the site remembers is the vector as fixed point rounds it.

    Then Σ w_c ξ_c = 0 holds for what was sent, whatever rounding did to it.
    """
    request = parsed(lambda: unpack_request(question))
    _check_alike(request)
    agreed = site.agreed_rows(address_of(question))
    total = parsed(lambda: told.integer("rows", least=1, most=2**53))
    limit = parsed(lambda: Fields({"limit": blocks[0].limit if blocks else None}, "the request").number("limit"))
    n_sites, privacy = len(told.items("sites")), request.config.privacy
    weight = int(agreed.problem.sizes[0]) / total
    if isinstance(privacy, ClientLevel):
        weight = 1.0 / n_sites  # which tells nothing of the site
        if limit < largest_part(privacy, n_sites):
            raise Refusal(RefusalCode.BAD_REQUEST, "the sum's range would tell whether the site's change fits it")
    grid = FixedPoint(limit=limit, n_clients=n_sites)
    theta = request.server.theta[0]

    def rounded(sent: Array) -> Array:
        change = grid.decode(grid.encode(weight * (sent - theta)))
        return np.asarray(theta + change / weight)

    task = agreed.task(address_of(question).part)
    threshold = parsed(lambda: told.integer("threshold", least=1))
    part = PartOfSum(rounded=rounded, n_clients=n_sites, threshold=threshold)
    reply = handle_request(request, task, site.store, site.policy, part=part)
    if isinstance(reply, StateLost):
        raise Refusal(RefusalCode.STATE_LOST)
    return {"change": weight * (reply.vector - theta)}


def _check_alike(request: TrainRequest) -> None:
    """Refuse rounds in which sites do not all do the same: their sum would tell most about one of them."""
    method = request.config.method
    if not isinstance(method, Scaffold | GradientScaffold) or not isinstance(method.local_steps, int):
        raise Refusal(
            RefusalCode.POLICY_METHOD, "secure sums are of Scaffold with the same local steps at all sites"
        )
    if request.client_state is not None:
        raise Refusal(RefusalCode.BAD_REQUEST, "control variates of a secure study are the sites' own")
