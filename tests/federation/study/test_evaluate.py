"""Evaluation on rows that were left out, against scikit-learn on the same rows."""

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from fedscaffold.federation.client.store import MemoryStore
from fedscaffold.federation.study.evaluate import area_under_roc, join_small_bins, mean_auc, rows_left_out
from fedscaffold.federation.study.settings import StudySettings
from fedscaffold.federation.study.site import SiteRules, StudySite
from fedscaffold.federation.study.study import InProcess, conduct_study
from tests.federation.study.tables import TABLES, deal


def test_area_under_roc_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    for n in (2, 3, 10, 200):
        scores = np.round(rng.random(n), 1)  # with ties
        positive = rng.random(n) < 0.5
        positive[:2] = (True, False)
        assert area_under_roc(scores, positive) == pytest.approx(roc_auc_score(positive, scores), rel=1e-12)


def test_loss_and_auc_are_those_of_the_rows_that_were_left_out() -> None:
    frame, _ = TABLES["wards"]()
    tables = deal(frame, 3, "features", seed=2)
    rules = SiteRules(by_the_clock=False)
    members = {
        name: StudySite(name=name, table=table, rules=rules, store=MemoryStore(name.encode()), engine="reference")
        for name, table in tables.items()
    }
    result = conduct_study(InProcess(members), StudySettings(target="y", kind="logistic"))
    classes = result.agreement.encoding.classes
    assert classes == ("ill", "well")
    for name, told in result.evaluation.items():
        left_out = tables[name][rows_left_out(len(tables[name]), 0.2, name.encode())]
        assert told.n_rows == len(left_out)
        assert 0.1 < len(left_out) / len(tables[name]) < 0.3
        # the model that was delivered is close to the one that left these rows out, and nearly as good on them
        probability = result.model.predict_proba(left_out)[:, 1]
        positive = (left_out.y == "well").to_numpy()
        assert told.loss == pytest.approx(log_loss(positive, probability), rel=0.05)
        assert told.auc == pytest.approx(roc_auc_score(positive, probability), abs=0.02)
        assert told.own_loss is not None
        assert told.own_loss == pytest.approx(told.loss, rel=0.5)
    assert result.auc == pytest.approx(
        np.mean([one.auc for one in result.evaluation.values() if one.auc]), abs=0.05
    )


def test_no_bin_has_a_small_count_and_none_is_lost() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        first, second = rng.poisson(rng.gamma(0.3, 3.0), 40), rng.poisson(rng.gamma(0.3, 3.0), 40)
        edges, a, b = join_small_bins(first, second, 5)
        assert edges[0] == 0.0
        assert edges[-1] == 1.0
        assert np.all(np.diff(edges) > 0)
        for joined, each in ((a, first), (b, second)):
            assert not np.any((joined > 0) & (joined < 5))
            assert joined.sum() == each.sum() or 0 < each.sum() - joined.sum() < 5


def test_sites_with_few_rows_leave_none_out_and_the_mean_skips_them() -> None:
    assert not rows_left_out(9, 0.5, b"secret").any()
    assert mean_auc({}) is None
