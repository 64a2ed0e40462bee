"""PyTorch models as a client's task, with an optimizer whose every step is θ ← θ − γ(g + ξ)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscaffold.core.errors import FedScaffoldError, InvalidInput, MissingDependency
from fedscaffold.core.protocols import LocalSgd
from fedscaffold.core.random.stream import Batches, Stream, batch, words
from fedscaffold.core.types import Array, IntArray

try:
    import torch
except ImportError as error:
    raise MissingDependency(
        "fedscaffold.flower.torch needs PyTorch; install it with: pip install torch"
    ) from error


@dataclass(frozen=True, kw_only=True)
class TrainingTask:
    """The part of a client's training loop in a round.

    Parameters
    ----------
    client, round
        Indices of the client and of the round, from 0.
    local_steps
        H, the number of calls of `optimizer.step()`.
    first_step
        Index of the first of these steps within the round; records are drawn by it.
    batches
        How steps draw records; `batches.size` is B, None for all.
    run_seed
        The run's seed.
    """

    client: int
    round: int
    local_steps: int
    first_step: int
    batches: Batches
    run_seed: int

    def rows(self, n: int) -> Iterator[IntArray]:
        """Yield, for each local step, the indices below n of the records that `fedscaffold.run` would draw."""
        stream = Stream(self.run_seed, repetition=0, round=self.round, client=self.client)
        for step in range(self.first_step, self.first_step + self.local_steps):
            yield batch(stream, step, self.batches, n)

    @property
    def seed(self) -> int:
        """A seed for this client and round, for example for `torch.manual_seed` before dropout."""
        return int(words(Stream(self.run_seed, repetition=1, round=self.round, client=self.client), 0, 1)[0])


class CorrectedSGD(torch.optim.Optimizer):  # type: ignore[misc]
    """The optimizer p ← p − γ(∇p + ξ_p + λp) for each parameter p; a step after the last one raises.

    Parameters
    ----------
    params
        The model's trainable parameters.
    step_size
        γ > 0.
    correction
        ξ_p of each parameter, in the same order.
    local_steps
        H, the number of steps to take.
    pull
        λ ≥ 0, of methods that pull to a model; 0 for most. Its constant part is in the correction.
    """

    def __init__(
        self,
        params: Sequence[Any],
        *,
        step_size: float,
        correction: Sequence[Any],
        local_steps: int,
        pull: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": step_size})
        self.step_size, self.local_steps, self.pull, self.taken = step_size, local_steps, pull, 0
        self.pairs = list(zip(params, correction, strict=True))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; raise if the learning rate was changed: the rule for the client state assumes γ."""
        if self.taken == self.local_steps:
            raise FedScaffoldError(
                f"this round has {self.local_steps} local steps, but the training loop takes one more"
            )
        if any(group["lr"] != self.step_size for group in self.param_groups):
            raise FedScaffoldError(
                "the learning rate was changed; the method's step size is the same in all steps"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for parameter, xi in self.pairs:
                if self.pull:
                    parameter.mul_(1.0 - self.step_size * self.pull)
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-self.step_size)
                parameter.add_(xi, alpha=-self.step_size)
        self.taken += 1
        return loss


class Training:
    """A PyTorch model and a training loop, as `fedscaffold.flower.client_app` takes them.

    θ is all parameters that require a gradient, one after another, in float64 on the wire; the model may be of any
    floating-point type. Penalties belong into the loss. Buffers, such as the running means of batch normalisation,
    would stay on one client and are rejected; normalise by groups or layers instead.

    Parameters
    ----------
    model
        A `torch.nn.Module`, on any device.
    train
        train(model, optimizer, task): calls `optimizer.step()` task.local_steps times, after
        `optimizer.zero_grad()`, a loss and its `backward()`, as in any training loop.
    n_rows
        n_c, the number of rows of data, to which the client's weight is proportional by default.
    """

    def __init__(
        self, model: Any, train: Callable[[Any, CorrectedSGD, TrainingTask], Any], *, n_rows: int
    ) -> None:
        moving = [name for name, buffer in model.named_buffers() if buffer.is_floating_point()]
        if moving:
            raise InvalidInput(
                f"the model has buffers that training changes, such as {moving[0]!r}, which are not part of θ and "
                "would differ from client to client; use group or layer normalisation instead"
            )
        self.model, self.train, self.n_rows = model, train, n_rows
        self.dim = sum(parameter.numel() for parameter in trainable(model))
        if self.dim == 0:
            raise InvalidInput("the model has no parameters that require a gradient")

    @contextmanager
    def open(self, batches: Batches, *, seed: int, client: int) -> Iterator[LocalSgd]:
        """Open the training loop as the local steps of this client."""

        def local_sgd(
            theta: Array, correction: Array, *, step_size: float, local_steps: int | IntArray, round: int,
            clients: IntArray | None = None, first_step: int = 0, pull: float = 0.0, anchor: Array | None = None,
        ) -> Array:  # fmt: skip
            if anchor is not None:
                raise InvalidInput(
                    "a training loop gives gradients at its own model only, and this method also takes them at an "
                    "anchor; use a method without variance reduction"
                )
            steps = int(np.max(local_steps))
            begun = theta.reshape(-1, self.dim)[0]
            set_parameters(self.model, begun)
            xi = _like(self.model, np.broadcast_to(correction, (1, 1, self.dim))[0, 0] - pull * begun)
            optimizer = CorrectedSGD(
                trainable(self.model), step_size=step_size, correction=xi, local_steps=steps, pull=pull
            )
            task = TrainingTask(
                client=client,
                round=round,
                local_steps=steps,
                first_step=first_step,
                batches=batches,
                run_seed=seed,
            )
            self.model.train()
            self.train(self.model, optimizer, task)
            if optimizer.taken != steps:
                raise FedScaffoldError(
                    f"round {round} has {steps} local steps, but the training loop took {optimizer.taken}; call "
                    "optimizer.step() task.local_steps times"
                )
            return get_parameters(self.model)[None, None, :]

        yield local_sgd


def trainable(model: Any) -> list[Any]:
    """Return the parameters that require a gradient, in the model's order; θ consists of them."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def get_parameters(model: Any) -> Array:
    """Return θ of a model, shape (dim,), in float64."""
    parts = [parameter.detach().cpu().double().reshape(-1).numpy() for parameter in trainable(model)]
    return np.concatenate([np.zeros(0), *parts])


def set_parameters(model: Any, theta: Array) -> None:
    """Set a model's trainable parameters to θ of shape (dim,)."""
    with torch.no_grad():
        for parameter, values in zip(trainable(model), _like(model, theta), strict=True):
            parameter.copy_(values)


def _like(model: Any, values: Array) -> list[Any]:
    """Return a vector as tensors like the model's parameters."""
    sizes = [parameter.numel() for parameter in trainable(model)]
    if values.size != sum(sizes):
        raise InvalidInput(f"the model has {sum(sizes)} parameters, but θ has {values.size}")
    parts = np.split(values, np.cumsum(sizes)[:-1])
    return [
        torch.from_numpy(part.copy()).to(device=p.device, dtype=p.dtype).reshape(p.shape)
        for p, part in zip(trainable(model), parts, strict=True)
    ]
