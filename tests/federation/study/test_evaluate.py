"""Evaluation on rows that were left out, against scikit-learn on the same rows."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from fedscaffold.federation import Study
from fedscaffold.federation.client.rules import SiteRules
from fedscaffold.federation.client.store import MemoryStore
from fedscaffold.federation.study.evaluate import (
    SiteEvaluation,
    area_under_roc,
    join_small_bins,
    mean_auc,
    rows_left_out,
    withhold_small,
)
from fedscaffold.federation.study.settings import StudySettings
from fedscaffold.federation.study.site import StudySite
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
    split = 0
    for _ in range(300):
        first, second = rng.poisson(rng.gamma(0.5, 3.0), 20), rng.poisson(rng.gamma(0.5, 3.0), 20)
        if any(0 < each.sum() < 5 for each in (first, second)):
            continue  # nothing is told by class
        edges, limits = join_small_bins(first, second, 5)
        assert (edges[0], edges[-1], limits[-1]) == (0.0, 1.0, 20)
        assert np.all(np.diff(limits) > 0)
        for each in (first, second):
            joined = np.add.reduceat(each, limits[:-1])
            assert not np.any((joined > 0) & (joined < 5))
            assert joined.sum() == each.sum()
        whole = all(
            not 0 < each[half].sum() < 5 for each in (first, second) for half in (slice(10), slice(10, 20))
        )
        assert (0.5 in edges) == whole
        split += whole
    assert split > 50


def test_counts_that_are_withheld_do_not_follow_from_those_that_are_told() -> None:
    rng = np.random.default_rng(2)
    for _ in range(500):
        counts = rng.integers(0, rng.integers(3, 30), rng.integers(2, 7))
        told = withhold_small(counts, 5)
        hidden = counts[[one is None for one in told]]
        assert all(one is None or one == count for one, count in zip(told, counts, strict=True))
        assert not any(one is not None and 0 < one < 5 for one in told)
        if hidden.size and (counts > 0).sum() > 1:
            assert hidden.size > 1
        if hidden.size and counts.sum() >= 5:
            assert hidden.sum() >= 5


def test_confusion_and_calibration_follow_from_the_histogram() -> None:
    told = SiteEvaluation(
        n_rows=40, edges=[0.0, 0.3, 0.5, 1.0], first=[10, 6, 5], second=[0, 5, 14], predicted=[0.1, 0.4, 0.8]
    )
    assert told.confusion == [[16, 5], [5, 14]]
    assert told.accuracy == 0.75
    withheld = SiteEvaluation(n_rows=40, edges=[0.0, 1.0], first=[21], second=[19], predicted=[0.5])
    assert withheld.confusion is None
    assert withheld.accuracy is None
    assert SiteEvaluation.from_json(told.to_json(), "bonn").to_json() == told.to_json()
    many = SiteEvaluation(n_rows=30, table=[[10, 0, 0], [None, None, 0], [0, 0, 10]])
    assert many.accuracy is None
    assert SiteEvaluation.from_json(many.to_json(), "bonn").confusion == many.table


def test_of_several_classes_a_table_is_told() -> None:
    frame, kind = TABLES["iris"]()
    frame = pd.concat([frame] * 5, ignore_index=True)
    result = Study(target="y", kind=kind).run(deal(frame, 3, "even", seed=1), engine="reference")
    for one in result.evaluation.values():
        assert one.confusion is not None
        assert [len(row) for row in one.confusion] == [3, 3, 3]
        told = [count for row in one.confusion for count in row if count is not None]
        assert not any(0 < count < 5 for count in told)
        assert sum(row[k] or 0 for k, row in enumerate(one.confusion)) >= one.n_rows / 3
        assert sum(told) <= one.n_rows


def test_where_a_class_is_rare_nothing_is_told_by_class() -> None:
    frame, kind = TABLES["wards"]()
    frame = frame.sort_values("y")
    tables = {
        "rare": frame.iloc[[*range(8), *range(len(frame) - 90, len(frame))]],
        "usual": frame.iloc[50 : len(frame) - 100],
    }
    result = Study(target="y", kind=kind).run(tables, engine="reference")
    told = result.evaluation["rare"]
    assert told.n_rows >= 5
    assert (told.auc, told.edges, told.first, told.second) == (None, [], [], [])
    assert result.evaluation["usual"].auc is not None


def test_sites_with_few_rows_leave_none_out_and_the_mean_skips_them() -> None:
    assert not rows_left_out(9, 0.5, b"secret").any()
    assert mean_auc({}) is None
