"""Tests of the older predictor ask it under the name that the new one has now; this file goes with them."""

from importlib import import_module

import pytest

from fedscaffold import theory

older = import_module("fedscaffold.theory.prediction.predict")


@pytest.fixture(autouse=True)
def older_predictor(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Bind `theory.predict` to the older predictor in its own tests."""
    if "theory/prediction" in str(request.path) or "theory/planning" in str(request.path):
        for name in ("predict", "predict_at_scale"):
            monkeypatch.setattr(theory, name, getattr(older, name), raising=False)
