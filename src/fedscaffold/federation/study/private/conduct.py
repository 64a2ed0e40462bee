"""The coordinator's side of a study under a privacy budget: greet, agree on public bounds, train with noise."""

from collections.abc import Mapping

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.study.attempts import CannotBeginAgain
from fedscaffold.federation.study.coordinator import Coordinator
from fedscaffold.federation.study.greet import SiteSchema, agree_on_columns
from fedscaffold.federation.study.measure import Measurements, SiteMeasurement
from fedscaffold.federation.study.messages import SiteProblems
from fedscaffold.federation.study.private.at_site import public_agreement
from fedscaffold.federation.study.private.result import PrivateStudyResult, PrivateTraining
from fedscaffold.federation.study.settings import StudySettings
from fedscaffold.federation.study.training.rounds import StudyRounds
from fedscaffold.models.private.curvature import bounded_curvature, mean_squares
from fedscaffold.models.private.planned import PublicPlan, public_plan
from fedscaffold.models.private.sites import site_plan
from fedscaffold.models.private.trials import centred

SPARE_ROUNDS = 1  # for which budgets suffice beyond the plan: of a site that paid for a round and then crashed


def private_phases(coordinator: Coordinator) -> PrivateStudyResult:
    """All phases of a study under a privacy budget."""
    settings = coordinator.settings
    bounds, budget = settings.public_bounds, settings.budget
    assert bounds is not None
    assert budget is not None
    schemas = coordinator.greet()
    _check_columns(schemas, settings)
    whole_sites = settings.protect == "sites"
    sizes = dict.fromkeys(schemas, 1) if whole_sites else _sizes(schemas)  # sites that are protected count alike
    agreement = public_agreement(settings, sum(sizes.values()))
    l2 = agreement.l2
    plan: PublicPlan
    if whole_sites:
        threshold = settings.threshold(len(sizes)) if settings.secure else None
        plan = site_plan(bounds, len(sizes), budget, l2=l2, threshold=threshold, spare_rounds=SPARE_ROUNDS)
    else:
        rows, target = list(sizes.values()), bounds.public_target
        plan = public_plan(target, bounds.levels, rows, budget, l2=l2, spare_rounds=SPARE_ROUNDS)
    coordinator.agree(agreement)  # after the plan, which refuses a budget that cannot protect every site
    coordinator.board.phase("train")
    coordinator.board.note(plan.explain())
    _, square = mean_squares(bounds.levels, intercept=True)
    largest = bounded_curvature(bounds.public_target, plan.privacy.clip, square) + agreement.l2
    measured = Measurements.of({
        site: SiteMeasurement(n_rows=n, smoothness=largest, noise=0.0, seconds_per_step=0.0)
        for site, n in sizes.items()
    })  # fmt: skip
    rounds = StudyRounds.start(
        coordinator, measured, np.zeros(agreement.dim), part=False, method=plan.method, privacy=plan.privacy
    )
    for k in range(plan.rounds):
        try:
            rounds.run()
            coordinator.board.round(k + 1)
        except InvalidInput as error:
            raise CannotBeginAgain(
                f"{error}; sites have spent a part of their privacy budgets, so that it cannot begin again: "
                "started again with the same folder it goes on where it stopped"
            ) from None
    theta = centred(rounds.theta, agreement.encoding.n_vectors)
    return PrivateStudyResult(
        settings=settings,
        agreement=agreement,
        totals=measured,
        training=PrivateTraining(theta=theta, rounds=plan.rounds, plan=plan, notes=(plan.explain(),)),
        evaluation={},
        traffic=coordinator.traffic,
        name=coordinator.name,
    )


def _check_columns(schemas: Mapping[str, SiteSchema], settings: StudySettings) -> None:
    """Refuse sites whose columns do not fit the bounds: numbers where these have a range, else text or numbers."""
    agree_on_columns(schemas, settings)
    bounds = settings.public_bounds
    assert bounds is not None
    numbers = [name for name in bounds.columns if not bounds.is_category(name)]
    problems = {
        site: f"column {name!r} of site {site} must hold numbers, since its bounds are a range"
        for site, schema in schemas.items()
        for name in numbers
        if schema.columns[name] != "number"
    }
    if problems:
        raise SiteProblems(problems)


def _sizes(schemas: Mapping[str, SiteSchema]) -> dict[str, int]:
    """Numbers of rows, which a privacy budget takes as public."""
    silent = {
        site: f"site {site} does not tell its number of rows, which a privacy budget takes as public"
        for site, schema in schemas.items()
        if not schema.n_rows
    }
    if silent:
        raise SiteProblems(silent)
    return {site: int(schema.n_rows or 0) for site, schema in schemas.items()}
