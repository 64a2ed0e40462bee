"""PyTorch models: f_c is the mean of a loss of a module's outputs over a client's records."""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import choice, given, not_negative
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.imports import load_optional
from fedscaffold.core.random.noise import dropout_numbers
from fedscaffold.core.random.stream import Stream
from fedscaffold.core.types import Array
from fedscaffold.problems.differentiable import ROWS_AT_ONCE, LossProblem, joined, source_of

MOST_CLASSES = 10_000  # distinct targets whose loss is tried before a run


class Torch(LossProblem):
    """f_c(θ) = mean of loss(module(inputs), target) over client c's records + l2/2 ‖θ‖²; θ is the parameters.

    θ holds the parameters that require a gradient, in the order of `module.named_parameters()`; runs start at the
    module's own. The others, and buffers that training leaves alone, are constants. Dropout is drawn from the
    run's seed in local steps, and off where losses and accuracies are measured, as after `module.eval()`. The
    module that is given is copied, and never changed.

    Where f has no single minimum, as for networks, record=("loss", "accuracy"). Nothing of the paper is proved for
    losses that are not convex.

    Parameters
    ----------
    module
        A `torch.nn.Module`, called with one client's inputs: a tensor, or several if they are a tuple.
    loss
        loss(output, target) → the loss of each record, (batch,), for example
        `torch.nn.CrossEntropyLoss(reduction="none")`.
    clients
        One pair (inputs, targets) per client, of tensors or arrays, their first axis the records; or one
        `torch.utils.data.Dataset` of such pairs per client; or one Dataset of all records, with `partition`.
    partition
        Each record's client, (records,), as `fedscaffold.data.partition` returns it, for one Dataset of all.
    l2
        Strength of the penalty l2/2 ‖θ‖²: what optimizers call weight decay.
    weights
        One positive weight per client, scaled to sum to one; uniform by default.
    buffers
        If "average", buffers that training changes, such as the running means of batch normalisation, are
        coordinates of θ: each local step moves them by γ times what the module would, and the server averages
        them. Batch normalisation mixes the records of a batch, so no theory holds. By default such modules are
        rejected.

    Attributes
    ----------
    initial
        The module's parameters as a vector, (dim,): runs start from it unless they are given `theta0`, a vector, a
        module or a `state_dict`.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> clients = [(rng.normal(size=(20, 4)), rng.integers(0, 3, size=20)) for _ in range(5)]
    >>> loss = torch.nn.CrossEntropyLoss(reduction="none")
    >>> problem = fs.problems.Torch(torch.nn.Linear(4, 3), loss, clients)
    >>> method = fs.Scaffold(step_size=0.1, local_steps=10)
    >>> trace = fs.run(problem, method, rounds=5, batch_size=4, record=("loss", "accuracy"))
    >>> problem.module(trace.theta)
    Linear(in_features=4, out_features=3, bias=True)
    """

    kind = "torch"
    engine = "torch"

    def __init__(
        self,
        module: Any,
        loss: Callable[[Any, Any], Any],
        clients: Any,
        *,
        partition: ArrayLike | None = None,
        l2: float = 0.0,
        weights: ArrayLike | None = None,
        buffers: Literal["reject", "average"] = "reject",
    ) -> None:
        torch = load_optional("torch", "problems.Torch needs PyTorch", extra="torch")
        from fedscaffold.problems import torch_autodiff

        if not isinstance(module, torch.nn.Module):
            raise InvalidInput(f"module must be a torch.nn.Module, got {given(module)}")
        if not callable(loss):
            raise InvalidInput(f"loss must be a function of (output, target), got {given(loss)}")
        average = choice("buffers", buffers, ("reject", "average")) == "average"
        self.l2 = not_negative("l2", l2)
        columns, _, offsets = joined(_clients(torch, clients, partition), _columns, single=True)
        self.records = tuple(columns)
        few = self._rows(np.arange(min(4, int(offsets[-1]))))
        self.batch_loss = torch_autodiff.checked(module, loss, self.l2, few, average=average)
        if average and self.l2:
            raise InvalidInput(
                "l2 would shrink averaged buffers too; put the penalty into the loss, or leave l2 at 0"
            )
        self.mixes_records = self.batch_loss.n_averaged > 0
        self.drops = self.batch_loss.dropped
        initial = self.batch_loss.ravel(self.batch_loss.state())
        self.dtype = str(initial.dtype).removeprefix("torch.")
        self._set_clients(offsets, initial.double().cpu().numpy(), weights)
        self._check_targets()

    def module(self, theta: ArrayLike) -> Any:
        """Return a copy of the module with the parameters θ, (dim,), or (1, dim) as in a trace."""
        import copy

        found = copy.deepcopy(self.batch_loss.still)
        state = dict((*found.named_parameters(), *found.named_buffers()))
        for name, values in self._tensors(theta).items():
            state[name].data.copy_(values)
        return found

    def state_dict(self, theta: ArrayLike) -> dict[str, Any]:
        """Return the `state_dict` of the module with the parameters θ, (dim,) or (1, dim)."""
        found: dict[str, Any] = self.module(theta).state_dict()
        return found

    def ravel(self, params: Any) -> Array | None:
        """Return a module like the problem's, or its `state_dict`, as a vector, (dim,); None if it is neither."""
        import torch

        if isinstance(params, torch.nn.Module):
            params = dict((*params.named_parameters(), *params.named_buffers()))
        flat = self.batch_loss
        names = (*flat.names, *flat.averaged)
        if not isinstance(params, dict) or any(
            name not in params or tuple(np.shape(params[name])) != shape
            for name, shape in zip(names, flat.shapes, strict=True)
        ):
            return None
        found: Array = flat.ravel(params).double().cpu().numpy()
        return found

    def batch_gradient(
        self, client: int, theta: Array, rows: NDArray[np.int64], *, uniform: Array | None = None
    ) -> Array:
        """Return the mean gradient at θ over some of a client's records, as local steps take it: with dropout."""
        batch = self._rows(self.offsets[client] + rows)
        return np.asarray(self._of("step_gradient", theta, batch, None, self._kept(uniform, rows.size)))

    def clipped_gradient(
        self,
        client: int,
        theta: Array,
        rows: NDArray[np.int64],
        clip: float,
        noise: Array | float = 0.0,
        *,
        uniform: Array | None = None,
    ) -> Array:
        """Return the mean of some records' gradients, each shortened to norm `clip`, plus noise and penalty."""
        batch = self._rows(self.offsets[client] + rows)
        return np.asarray(
            self._of("clipped_gradient", theta, batch, None, self._kept(uniform, rows.size), clip) + noise
        )

    def dropout(self, stream: Stream, step: int, records: int) -> Array:
        """Return the numbers by which dropout decides in a local step, (records, drops)."""
        return dropout_numbers(stream, np.array([stream.client]), step, records, self.drops)[0]

    def accuracy(self, theta: Array) -> float:
        """Return the share of records whose class has the largest output, or with one output its sign."""
        from fedscaffold.problems.torch_autodiff import accuracy

        found = [
            self._of("outputs", theta, self._rows(np.arange(begin, min(begin + ROWS_AT_ONCE, self.n_records))))
            for begin in range(0, self.n_records, ROWS_AT_ONCE)
        ]
        return accuracy(np.concatenate(found), self.records[-1])

    def predict(self, theta: ArrayLike, inputs: Any) -> Array:
        """Return the module's outputs at θ, (dim,) or (1, dim), for inputs like a client's."""
        batch = (*_inputs(inputs), np.zeros(0))
        return np.asarray(self._of("outputs", np.reshape(theta, -1), batch))

    def describe(self) -> dict[str, Any]:
        """Return the kind, sizes, weights, penalty, the parameters' names and shapes, and the loss's name."""
        flat = self.batch_loss
        return {**super().describe(), "names": [*flat.names, *flat.averaged], "dtype": self.dtype}

    def _tensors(self, theta: ArrayLike) -> dict[str, Any]:
        import torch

        values = np.asarray(theta, dtype=np.float64)
        if values.shape not in ((self.dim,), (1, self.dim)):
            raise InvalidInput(
                f"theta must have shape ({self.dim},), got {values.shape}; of several repetitions take one row"
            )
        found: dict[str, Any] = self.batch_loss.unravel(torch.from_numpy(values.reshape(-1).copy()))
        return found

    def _kept(self, uniform: Array | None, records: int) -> Array | None:
        """Return dropout's numbers; 1 for each, so that nothing is dropped, if none are given."""
        return np.ones((records, self.drops)) if uniform is None and self.drops else uniform

    def _check_targets(self) -> None:
        """Raise if the loss of some class is not finite, or cannot be computed."""
        targets = self.records[-1]
        if targets.ndim != 1 or targets.dtype.kind not in "iu":
            return
        classes, first = np.unique(targets, return_index=True)
        for one, at in list(zip(classes.tolist(), first.tolist(), strict=True))[:MOST_CLASSES]:
            try:
                found = float(self._of("value", self.initial, self._rows(np.array([at])), np.ones(1)))
                why = f"it is {found}"
            except Exception as error:  # whatever the loss raises
                found, why = np.nan, " ".join(str(error).split())[:200]
            if not np.isfinite(found):
                client = int(np.searchsorted(self.offsets, at, side="right")) - 1
                raise InvalidInput(
                    f"the loss cannot be computed for the target {one} (client {client}, record "
                    f"{at - self.offsets[client]}): {why}"
                )

    def _of(self, name: str, theta: Array, *arguments: Any) -> Any:
        """Return a function of `torch_autodiff` of the loss at θ, in float64, as a NumPy array."""
        import torch

        from fedscaffold.problems import torch_autodiff

        flat = self.batch_loss.like(torch.float64, "cpu")

        def there(argument: Any) -> Any:
            if isinstance(argument, tuple):
                return tuple(there(part) for part in argument)
            return flat.there(argument) if isinstance(argument, np.ndarray) else argument

        point = there(np.asarray(theta, dtype=np.float64))
        return getattr(torch_autodiff, name)(flat, point, *map(there, arguments)).detach().numpy()

    def _rows(self, at: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
        return tuple(column[at] for column in self.records)

    def _identity(self) -> tuple[str, Sequence[NDArray[Any]]]:
        """Return the module's text and source, its names and shapes, and all its constants and records."""
        flat = self.batch_loss
        own = {type(part) for part in flat.module.modules() if not type(part).__module__.startswith("torch.")}
        sources = [source_of(kind) for kind in sorted(own, key=lambda kind: kind.__qualname__)]
        words = (
            self.kind,
            repr(self.l2),
            str(flat.module),
            sources,
            flat.names,
            flat.averaged,
            flat.shapes,
            self.dtype,
        )
        return str(words), [*(values.cpu().numpy() for values in flat.constants.values()), *self.records]


def _clients(torch: Any, clients: Any, partition: ArrayLike | None) -> Any:
    """Return the clients, one Dataset of all records divided by a partition."""
    data = torch.utils.data
    if partition is None:
        if isinstance(clients, data.Dataset):
            raise InvalidInput("one Dataset of all records needs partition=, each record's client")
        return clients
    owners = np.asarray(partition)
    if not isinstance(clients, data.Dataset) or owners.shape != (len(clients),):
        raise InvalidInput(
            f"partition is each record's client, for one Dataset of all records; got {given(clients)} and shape "
            f"{owners.shape}"
        )
    return [data.Subset(clients, np.flatnonzero(owners == one).tolist()) for one in np.unique(owners)]


def _inputs(inputs: Any) -> tuple[Any, ...]:
    parts = inputs if isinstance(inputs, tuple) else (inputs,)
    return tuple(part.detach().cpu().numpy() if hasattr(part, "detach") else np.asarray(part) for part in parts)


def _columns(client: Any) -> tuple[Sequence[Any], Any]:
    """Return a client's inputs and targets as arrays, and how many inputs there are."""
    import torch

    if isinstance(client, torch.utils.data.Dataset):
        items = [client[i] for i in range(len(client))]
        if not items:
            raise InvalidInput("a client's Dataset has no records; leave it out")
        client = torch.utils.data.default_collate(items)
    if not isinstance(client, tuple | list) or len(client) != 2:
        raise InvalidInput(f"each client must be a pair (inputs, targets), got {given(client)}")
    inputs = _inputs(tuple(client[0]) if isinstance(client[0], list) else client[0])
    return (*inputs, *_inputs(client[1])), f"{len(inputs)} inputs and targets"
