"""Adapters from published implementations of Scaffold to `conformance.check`, each in an environment of its own.

An adapter drives the library's own classes on the suite's tasks, without a network. It is a module of this folder
that imports its library: so it is imported where that library is installed, and nowhere else.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import cast

from fedscaffold.conformance.task import Start
from fedscaffold.core.checks import choice

__all__ = ["LIBRARIES", "Library", "adapter"]


def __dir__() -> list[str]:
    return __all__


@dataclass(frozen=True)
class Library:
    """A published library with a Scaffold, at the version that its adapter was written for.

    Attributes
    ----------
    adapter
        The class in the library's module of this folder.
    requirements
        What to install, the library first.
    implements
        The parts of the library that are checked.

    Examples
    --------
    >>> from fedscaffold.conformance.adapters import LIBRARIES
    >>> LIBRARIES["declearn"].requirements[0].split("==")[0]
    'declearn'
    """

    adapter: str
    requirements: tuple[str, ...]
    implements: str

    @property
    def version(self) -> str:
        """The version of the library, from its pinned requirement."""
        return self.requirements[0].split("==")[1]


LIBRARIES = {
    "declearn": Library(
        "DeclearnScaffold", ("declearn==2.9.1",), "optimizer.modules.ScaffoldClientModule, ScaffoldServerModule"
    ),
    "fedbiomed": Library("FedBiomedScaffold", ("fedbiomed==6.4.1",), "researcher.aggregators.Scaffold"),
    "fedlab": Library("FedLabScaffold", ("fedlab==1.3.0", "torch", "torchvision"), "contrib.algorithm.scaffold"),
    "fluke": Library("FlukeScaffold", ("fluke-fl==0.8.1",), "algorithms.scaffold"),
    "nvflare": Library(
        "NVFlareScaffold", ("nvflare==2.9.0", "torch"), "app_opt.pt.scaffold, app_common.workflows.scaffold"
    ),
    "pfl": Library("PflResearchScaffold", ("pfl==0.6.0", "torch"), "algorithm.scaffold"),
    "substrafl": Library(
        "SubstraFLScaffold",
        ("substrafl==1.0.0", "torch"),
        "algorithms.pytorch.TorchScaffoldAlgo, strategies.Scaffold",
    ),
}
"""The libraries by name."""


def adapter(name: str) -> Start:
    """The adapter to a library, for `conformance.check`; the library must be installed here.

    Examples
    --------
    >>> from fedscaffold.conformance.adapters import adapter
    >>> adapter("numpy")
    Traceback (most recent call last):
    fedscaffold.core.errors.InvalidInput: library must be one of 'declearn', ...
    """
    module = import_module(f"{__name__}.{choice('library', name, tuple(LIBRARIES))}")
    return cast(Start, getattr(module, LIBRARIES[name].adapter))
