"""Searches for a privacy budget, which take seconds and depend on public facts alone, are done once for each."""

from collections.abc import Iterator
from typing import Any

import pytest
from fedscaffold.models.private.search import PublicSearch

from fedscaffold.models.private import planned


@pytest.fixture(scope="session", autouse=True)
def _searches_are_done_once() -> Iterator[None]:
    found: dict[str, Any] = {}

    class Search(PublicSearch):
        def __init__(self, *given: Any, **more: Any) -> None:
            self.key = repr((given, sorted(more.items())))
            if self.key not in found:
                super().__init__(*given, **more)

        def best(self) -> Any:
            if self.key not in found:
                found[self.key] = super().best()
            return found[self.key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planned, "PublicSearch", Search)
        yield
