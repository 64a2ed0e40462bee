"""Adapters from published implementations of Scaffold to `conformance.check`, each in a separate environment.

An adapter drives the library's own classes on the suite's tasks, without a network. It is a module of this folder
that imports its library, so it can be imported only if that library is installed.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, cast

from fedscaffold.conformance.task import Array, NotSupported, Start, Task
from fedscaffold.core.checks import choice

__all__ = ["LIBRARIES", "Library", "adapter"]


def __dir__() -> list[str]:
    return __all__


@dataclass(frozen=True)
class Library:
    """A published library with a Scaffold, at the version that its adapter was written for.

    Most libraries require much more than the checked parts need, from web servers to GPU code, and would take many
    times longer to install.

    Examples
    --------
    >>> from fedscaffold.conformance.adapters import LIBRARIES
    >>> LIBRARIES["declearn"].release.split("==")[0]
    'declearn'
    """

    adapter: str  # the class in the library's module of this folder
    release: str  # package and version, which is installed without its dependencies; empty for a checkout
    needs: str  # packages that the checked parts import, as arguments of pip install
    implements: str  # the parts of the library that are checked
    repository: str = ""  # of a library that is on no package index, of which a checkout is given
    folder: str = ""  # of that checkout, with the modules that the adapter imports

    @property
    def version(self) -> str:
        """The version of the library; empty for a checkout, whose version is its commit."""
        return self.release.partition("==")[2]


TORCH = "torch==2.13.0 numpy==2.3.5"
LIBRARIES = {
    "declearn": Library(
        "DeclearnScaffold",
        "declearn==2.9.1",
        "cryptography==50.0.2 fire==0.7.1 gmpy2==2.3.2 msgpack==1.2.4 numpy==2.3.5 pandas==3.1.1 requests==2.34.2 "
        "scikit-learn==1.9.1 tqdm==4.70.1",
        "optimizer.modules.ScaffoldClientModule, ScaffoldServerModule",
    ),
    "fedbiomed": Library(
        "FedBiomedScaffold",
        "fedbiomed==6.4.1",
        f"{TORCH} cryptography==50.0.2 declearn==2.8.0 gmpy2==2.3.2 msgpack==1.2.4 nibabel==5.4.2 opacus==1.6.0 "
        "packaging==26.3 pillow==13.0.0 polars==1.32.3",
        "researcher.aggregators.Scaffold",
    ),
    "fedlab": Library(
        "FedLabScaffold",
        "fedlab==1.3.0",
        f"{TORCH} pandas==3.1.1 pillow==13.0.0 pynvml==13.0.1 scikit-learn==1.9.1 tqdm==4.70.1",
        "contrib.algorithm.scaffold",
    ),
    "fluke": Library(
        "FlukeScaffold",
        "fluke-fl==0.8.1",
        f"{TORCH} cerberus==1.3.8 diskcache==5.6.3 matplotlib==3.11.2 omegaconf==2.4.0 pandas==3.1.1 "
        "psutil==7.2.2 pyyaml==6.0.3 rich==15.0.0 scikit-learn==1.9.1 seaborn==0.13.2 torchmetrics==1.9.0",
        "algorithms.scaffold",
    ),
    "nvflare": Library(
        "NVFlareScaffold",
        "nvflare==2.9.0",
        f"{TORCH} cryptography==50.0.2 grpcio==1.85.1 msgpack==1.2.4 psutil==7.2.2 pyyaml==6.0.3 "
        "safetensors==0.8.0",
        "app_opt.pt.scaffold, app_common.workflows.scaffold",
    ),
    "pfl": Library(
        "PflResearchScaffold",
        "pfl==0.6.0",
        "torch==2.13.0 dp-accounting==0.5.1 multiprocess==0.70.19 packaging==25.0 prv-accountant==0.2.0",
        "algorithm.scaffold",
    ),
    "substrafl": Library(
        "SubstraFLScaffold",
        "substrafl==1.0.0",
        f"{TORCH} cloudpickle==3.1.2 packaging==26.3 pydantic==2.14.3 six==1.17.0 substra==1.0.0 "
        "substratools==1.0.0 tqdm==4.70.1",
        "algorithms.pytorch.TorchScaffoldAlgo, strategies.Scaffold",
    ),
    "fl-bench": Library(
        "FLBenchScaffold", "",
        f"{TORCH} omegaconf==2.3.1 hydra-core==1.3.2 pandas==3.1.1 pillow==13.0.0 rich==13.9.4 "
        "scikit-learn==1.9.1",
        "src.server.scaffold, src.client.scaffold", "github.com/KarhouTam/FL-bench",
    ),
    "fl4health": Library(
        "FL4HealthScaffold", "",
        f"{TORCH} flwr==1.18.0 opacus==1.6.0 dp-accounting==0.5.1 pyyaml==6.0.3 scikit-learn==1.9.1 "
        "torchmetrics==1.9.0 tqdm==4.70.1",
        "clients.scaffold_client, strategies.scaffold", "github.com/VectorInstitute/FL4Health",
    ),
    "flower-niid-bench": Library(
        "FlowerNiidBenchScaffold", "", f"{TORCH} flwr==1.22.0 hydra-core==1.3.2",
        "niid_bench.client_scaffold, server_scaffold, strategy", "github.com/adap/flower", "baselines/niid_bench",
    ),
    "niid-bench": Library(
        "NIIDBenchScaffold", "", f"{TORCH} scikit-learn==1.9.1",
        "experiments.local_train_net_scaffold", "github.com/Xtra-Computing/NIID-Bench",
    ),
    "pfllib": Library(
        "PFLlibScaffold", "", f"{TORCH} h5py==3.16.0 matplotlib==3.11.2 scikit-learn==1.9.1",
        "flcore.servers.serverscaffold, flcore.clients.clientscaffold", "github.com/TsingZ0/PFLlib", "system",
    ),
}  # fmt: skip
"""The libraries by name."""


def adapter(name: str) -> Start:
    """Return the adapter to a library, for `conformance.check`; the library must be installed here.

    Parameters
    ----------
    name
        A key of `LIBRARIES`.

    Returns
    -------
    Start
        The class that wraps the library's Scaffold.

    Raises
    ------
    InvalidInput
        If there is no adapter to a library of this name.

    Examples
    --------
    >>> from fedscaffold.conformance.adapters import adapter
    >>> adapter("numpy")
    Traceback (most recent call last):
    fedscaffold.core.errors.InvalidInput: library must be one of 'declearn', ...
    """
    module = import_module(f"{__name__}.{choice('library', name, tuple(LIBRARIES)).replace('-', '_')}")
    return cast(Start, getattr(module, LIBRARIES[name].adapter))


# What adapters share


class Adapter:
    """A library's Scaffold on a task; subclasses define what is declared here.

    The class attributes give the reason why a library takes clients of equal weight, or with equally many local
    steps, alone; they are empty if it takes others.
    """

    equal_weights: ClassVar[str] = "its clients have equal weights"
    equal_local_steps: ClassVar[str] = "its clients take the same number of local steps"
    _begin: Any  # (task): build server and clients
    _round: Any  # (cohort), or (cohort, lost) of a library with replies that get lost
    _model: Any  # (): the server's model θ
    _variates: Any  # (client): c and c_i

    def __init__(self, task: Task) -> None:
        for reason, fits in (
            (self.equal_weights, task.has_equal_weights),
            (self.equal_local_steps, task.has_equal_local_steps),
        ):
            if reason and not fits:
                raise NotSupported(reason)
        self.task = task
        self._begin(task)

    def round(self, cohort: tuple[int, ...]) -> None:
        """Run one communication round with these clients."""
        self._round(cohort)

    def model(self) -> Array:
        """Return the server's model θ."""
        return self._model()

    def correction(self, client: int) -> Array:
        """Return the correction c − c_i."""
        server, own = self._variates(client)
        return server - own


class LossyAdapter(Adapter):
    """A library with replies that may get lost."""

    def round(self, cohort: tuple[int, ...]) -> None:
        """Run one communication round with these clients."""
        self._round(cohort, ())

    def round_with_lost_replies(self, cohort: tuple[int, ...], lost: tuple[int, ...]) -> None:
        """Run one round in which the clients of `lost` train, but their replies do not reach the server."""
        self._round(cohort, lost)


class LoopAdapter(LossyAdapter):
    """A library without a training loop, which the adapter writes, so that settings may change too."""

    def reconfigure(self, task: Task) -> None:
        """Take the step size and the local steps of another task."""
        self.task = task
