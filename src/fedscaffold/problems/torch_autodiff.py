"""The loss of a PyTorch module as a function of one vector θ, with its derivatives by torch.func.

A module that `torch.func.vmap` cannot run on many models or records side by side runs on one after another.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

Batch = tuple[Any, ...]  # inputs and, last, targets, each (records, ...)
COLUMNS_AT_ONCE = 32  # of a Hessian: more take memory, fewer take time
FEATURES = (functional.dropout1d, functional.dropout2d, functional.dropout3d)  # which drop whole channels


class Dropout(TorchFunctionMode):  # type: ignore[misc]
    """Dropout by given numbers between 0 and 1, (records, numbers); without them it counts how many it takes."""

    def __init__(self, records: int, uniform: Any = None) -> None:
        super().__init__()
        self.records, self.uniform, self.taken = records, uniform, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is not functional.dropout and func not in FEATURES:
            return func(*args, **given)
        x, rate = args[0], given["p"]
        if not given["training"] or rate == 0.0:
            return x
        shape = x.shape if func is functional.dropout else (*x.shape[:2], *([1] * (x.ndim - 2)))
        each = math.prod(shape) // self.records
        if self.uniform is not None:
            kept = self.uniform[:, self.taken : self.taken + each].reshape(shape) >= rate
            x = x * kept / (1.0 - rate)
        self.taken += each
        return x


class ModuleLoss:
    """θ ↦ mean of loss(module(inputs), target) + l2/2 ‖θ‖² over a batch; θ is the trainable parameters in order.

    With `averaged`, buffers that training changes are the last coordinates of θ, and their gradient is b − b⁺: a
    local step moves them by γ times what the module would, and methods treat them as they treat parameters.
    """

    def __init__(self, module: Any, loss: Callable[[Any, Any], Any], l2: float) -> None:
        self.loss, self.l2 = loss, l2
        self.dtype, self.device = torch.float64, "cpu"
        self.module = copy.deepcopy(module).train()
        self.still = copy.deepcopy(module).eval()  # of which losses and accuracies are measured
        self.names = [name for name, p in module.named_parameters() if p.requires_grad]
        self.averaged: list[str] = []
        self.counters: list[str] = []  # whole numbers that the module changes, such as how many batches it saw
        self.dropped = 0  # numbers that dropout takes for a record
        self.side_by_side = True
        state = self.state()
        self.constants = {name: values for name, values in state.items() if name not in self.names}
        self._set_shapes(state)

    def _set_shapes(self, state: dict[str, Any]) -> None:
        self.shapes = tuple(tuple(state[name].shape) for name in (*self.names, *self.averaged))
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.n_averaged = sum(self.sizes[len(self.names) :])

    def state(self) -> dict[str, Any]:
        """Return all parameters and buffers by name, frozen and unsaved ones included."""
        named = (*self.module.named_parameters(), *self.module.named_buffers())
        return {name: values.detach().clone() for name, values in named}

    def average(self, names: Sequence[str], counters: Sequence[str]) -> None:
        """Take changing buffers as coordinates of θ."""
        self.averaged, self.counters = list(names), list(counters)
        self._set_shapes(self.state())

    def like(self, dtype: Any, device: Any) -> "ModuleLoss":
        """Return the same loss on a device, for vectors and records of a precision."""
        other = copy.copy(self)
        other.dtype, other.device = dtype, device
        other.constants = {name: other.there(values) for name, values in self.constants.items()}
        return other

    def there(self, values: Any) -> Any:
        """Return an array or a tensor on the device: floating-point numbers in the precision, others as int64."""
        return converted(values, self.dtype, self.device)

    def unravel(self, theta: Any) -> dict[str, Any]:
        """Return the tensors by name that a vector stands for."""
        parts = zip((*self.names, *self.averaged), theta.split(self.sizes), self.shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in parts}

    def ravel(self, state: dict[str, Any]) -> Any:
        """Return the vector of a state, a tensor."""
        return torch.cat([torch.as_tensor(state[n]).detach().reshape(-1) for n in (*self.names, *self.averaged)])

    def outputs(self, theta: Any, batch: Batch, training: bool = False, uniform: Any = None) -> tuple[Any, Any]:
        """Return the module's outputs, and the averaged buffers after them as a vector."""
        tensors = {**self.constants, **self.unravel(theta)}
        for name in (*self.averaged, *self.counters):
            tensors[name] = tensors[name].detach().clone()  # which PyTorch does not differentiate
        module = self.module if training else self.still
        if training and self.dropped:
            with Dropout(len(batch[-1]), uniform):
                found = functional_call(module, tensors, batch[:-1])
        else:
            found = functional_call(module, tensors, batch[:-1])
        moved = [tensors[name].detach().reshape(-1) for name in self.averaged]
        return found, torch.cat([theta.new_zeros(0), *moved])

    def losses(self, theta: Any, batch: Batch) -> Any:
        """Return the loss of each record, (records,)."""
        return self.loss(self.outputs(theta, batch)[0], batch[-1])

    def of_records(self, theta: Any, batch: Batch, share: Any) -> Any:
        """Return Σ_i share_i loss(θ, record_i), or the mean if share is None; without dropout and penalty."""
        each = self.losses(theta, batch)
        return each.mean() if share is None else share @ each

    def _step_loss(self, theta: Any, batch: Batch, share: Any, uniform: Any) -> Any:
        found, moved = self.outputs(theta, batch, True, uniform)
        each = self.loss(found, batch[-1])
        return each.mean() if share is None else share @ each, moved

    def step_gradient(self, theta: Any, batch: Batch, share: Any, uniform: Any) -> Any:
        """Return the gradient that a local step takes at θ, dropout and penalty included."""
        slope, moved = grad(self._step_loss, has_aux=True)(theta, batch, share, uniform)
        if self.averaged:
            slope = torch.cat([slope[: -self.n_averaged], theta[-self.n_averaged :] - moved])
        return slope + self.l2 * theta if self.l2 else slope

    def clipped_gradient(self, theta: Any, batch: Batch, share: Any, uniform: Any, clip: float) -> Any:
        """Return the same from records' gradients shortened to norm `clip`, and 0 if they are not finite."""

        def of_one(record: Batch, own: Any) -> Any:
            return grad(self._step_loss, has_aux=True)(theta, alone(record), None, alone(own))[0]

        each = self.map(of_one, (0, None if uniform is None else 0))(batch, uniform)
        each = torch.where(torch.isfinite(each).all(dim=1, keepdim=True), each, 0.0)
        largest = each.abs().amax(dim=1, keepdim=True)
        unit = torch.where(largest > 0.0, largest, 1.0)  # squares of large numbers would be infinite
        norms = largest * (each / unit).norm(dim=1, keepdim=True)
        each = each * (clip / norms.clamp(min=clip))
        return (each.mean(dim=0) if share is None else share @ each) + self.l2 * theta

    def map(self, function: Callable[..., Any], axes: tuple[Any, ...], at_once: int | None = None) -> Any:
        """Return a function of arguments along a first axis, (n, ...), for which `axes` has 0, side by side."""
        if self.side_by_side:
            return vmap(function, in_dims=axes, chunk_size=at_once)

        def one_by_one(*arguments: Any) -> Any:
            count = next(leading(a) for a, axis in zip(arguments, axes, strict=True) if axis == 0)
            rows = range(count)
            return torch.stack([
                function(*(row(a, i) if axis == 0 else a for a, axis in zip(arguments, axes, strict=True)))
                for i in rows
            ])  # fmt: skip

        return one_by_one


def row(argument: Any, i: int) -> Any:
    """Return entry i of a tensor, or of each tensor in a tuple."""
    return tuple(part[i] for part in argument) if isinstance(argument, tuple) else argument[i]


def leading(argument: Any) -> int:
    """Return the length of the first axis."""
    return len(argument[0] if isinstance(argument, tuple) else argument)


def alone(record: Any) -> Any:
    """Return one record as a batch: every tensor gets a leading axis of length one."""
    if isinstance(record, tuple):
        return tuple(part[None] for part in record)
    return None if record is None else record[None]


def converted(values: Any, dtype: Any, device: Any) -> Any:
    """Return an array or tensor on a device: floating-point numbers in a precision, whole numbers as int64."""
    tensor = torch.as_tensor(values.copy() if isinstance(values, np.ndarray) else values)
    if tensor.is_floating_point():
        return tensor.to(device, dtype)
    return tensor.to(device) if tensor.dtype == torch.bool else tensor.to(device, torch.int64)


# derivatives, of the loss without dropout and penalty


def value(flat: ModuleLoss, theta: Any, batch: Batch, share: Any) -> Any:
    """Return the weighted loss Σ_i share_i ℓ_i(θ) of the records i of a batch."""
    with torch.no_grad():
        return flat.of_records(theta, batch, share)


def outputs(flat: ModuleLoss, theta: Any, batch: Batch) -> Any:
    """Return the module's outputs, without dropout."""
    with torch.no_grad():
        return flat.outputs(theta, batch)[0]


def gradient(flat: ModuleLoss, theta: Any, batch: Batch, share: Any) -> Any:
    """Return the gradient Σ_i share_i ∇ℓ_i(θ) of the weighted loss of a batch, (d,)."""
    return grad(flat.of_records)(theta, batch, share)


def step_gradient(flat: ModuleLoss, theta: Any, batch: Batch, share: Any, uniform: Any) -> Any:
    """Return the gradient that a local step takes, penalty included, (d,)."""
    return flat.step_gradient(theta, batch, share, uniform)


def clipped_gradient(flat: ModuleLoss, theta: Any, batch: Batch, share: Any, uniform: Any, clip: float) -> Any:
    """Return the same from records' gradients shortened to norm `clip`, (d,)."""
    return flat.clipped_gradient(theta, batch, share, uniform, clip)


def record_gradients(flat: ModuleLoss, theta: Any, batch: Batch) -> Any:
    """Return the gradient ∇ℓ_i(θ) of each record i of a batch, (records, d)."""
    return flat.map(lambda record: grad(flat.of_records)(theta, alone(record), None), (0,))(batch)


def record_gradients_at(flat: ModuleLoss, points: Any, batch: Batch) -> Any:
    """Return the same at several points, one after another, (points, records, d)."""
    return torch.stack([record_gradients(flat, theta, batch) for theta in points])


def _along(f: Callable[[Any], Any], theta: Any) -> Callable[[Any], Any]:
    """Return v ↦ ∇²f(θ) v, as the gradient of ⟨∇f, v⟩: more modules have it than forward mode."""
    return lambda v: grad(lambda point: grad(f)(point) @ v)(theta)


def hessian(flat: ModuleLoss, theta: Any, batch: Batch, share: Any) -> Any:
    """Return Σ_i share_i ∇²ℓ_i(θ), some columns at a time."""
    product = _along(lambda point: flat.of_records(point, batch, share), theta)
    columns = flat.map(product, (0,), COLUMNS_AT_ONCE)(torch.eye(theta.numel(), dtype=theta.dtype))
    return 0.5 * (columns + columns.T)


def curvature(flat: ModuleLoss, theta: Any, batch: Batch, share: Any) -> Any:
    """Return the largest |eigenvalue| of Σ_i share_i ∇²ℓ_i(θ), by the power method, from below."""
    return _largest(lambda point: flat.of_records(point, batch, share), theta)


def largest_record_curvature(flat: ModuleLoss, theta: Any, batch: Batch) -> Any:
    """Return the same of single records: the largest over the batch."""

    def of_one(record: Batch) -> Any:
        return _largest(lambda point: flat.of_records(point, alone(record), None), theta)

    together = max(1, (1 << 20) // theta.numel())  # 8 MB of directions, one per record
    return flat.map(of_one, (0,), together)(batch).max()


def _largest(f: Callable[[Any], Any], theta: Any) -> Any:
    start = np.random.default_rng(0).normal(size=theta.numel())
    direction, norm = torch.as_tensor(start / np.linalg.norm(start), dtype=theta.dtype), theta.new_zeros(())
    product = _along(f, theta)
    for _ in range(30):
        ahead = product(direction)
        norm = ahead.norm()
        direction = ahead / torch.where(norm > 0, norm, 1.0)
    return norm


# checks of what users hand over


def checked(module: Any, loss: Any, l2: float, batch: Batch, *, average: bool) -> ModuleLoss:
    """Return the loss of a module as a function of θ; raise if it cannot be, going by some records.

    Draws nothing from PyTorch's generators and leaves the module as it is.
    """
    flat = ModuleLoss(module, loss, l2)
    if not flat.names:
        raise InvalidInput("the module has no parameters that require a gradient")
    double = flat.like(torch.float64, "cpu")
    state = {name: converted(values, torch.float64, "cpu") for name, values in flat.state().items()}
    broken = [name for name, values in state.items() if not torch.isfinite(values.double()).all()]
    if broken:
        raise InvalidInput(f"the module's {broken[0]!r} holds NaN or infinity; start from another module")
    batch = tuple(converted(part, torch.float64, "cpu") for part in batch)
    counter = Dropout(len(batch[-1]))
    with torch.random.fork_rng(devices=[]):
        before = {name: values.clone() for name, values in state.items()}
        first = _run(lambda: _counted(flat, before, batch, counter))
        moved = [name for name, values in state.items() if not torch.equal(before[name], values)]
        floats = [name for name in moved if state[name].is_floating_point()]
        if floats and not average:
            raise InvalidInput(
                f"the module has buffers that training changes, such as {floats[0]!r}, which would differ from "
                "client to client; use group or layer normalisation instead, or buffers='average'"
            )
        flat.average(floats, [name for name in moved if name not in floats])
        flat.dropped = counter.taken
        torch.manual_seed(1)
        again = {name: values.clone() for name, values in state.items()}
        if not torch.equal(first, _run(lambda: _counted(flat, again, batch, Dropout(len(batch[-1]))))):
            raise InvalidInput(
                "the module draws random numbers that no seed of a run decides; use torch.nn.Dropout, and nothing "
                "else that is random"
            )
    double = flat.like(torch.float64, "cpu")
    theta = flat.ravel(state)
    _check_losses(_run(lambda: double.losses(theta, batch)), double, theta, batch)
    flat.side_by_side = _runs_side_by_side(double, theta, batch)
    return flat


def _counted(flat: ModuleLoss, state: dict[str, Any], batch: Batch, dropout: Dropout) -> Any:
    with torch.no_grad(), dropout:
        return functional_call(flat.module, state, batch[:-1])


def _run(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except InvalidInput:
        raise
    except Exception as error:
        why = " ".join(str(error).split())[:300]
        raise InvalidInput(
            f"the module or its loss fails on the first records, in double precision: {why}"
        ) from error


def _check_losses(each: Any, flat: ModuleLoss, theta: Any, batch: Batch) -> None:
    count = len(batch[-1])
    if not isinstance(each, torch.Tensor) or each.shape != (count,):
        shape = tuple(getattr(each, "shape", ()))
        raise InvalidInput(
            f"loss(output, target) must return one number per record, shape ({count},), but it returned shape "
            f"{shape}; do not average in it: take reduction='none'"
        )
    if not torch.isfinite(each).all():
        raise InvalidInput(f"the loss is {float(each.sum())} on the first records; start from another module")
    twice = _run(lambda: flat.losses(theta, tuple(part[[0, 0]] for part in batch)))  # one record beside itself
    if not torch.allclose(twice, each[:1], rtol=1e-5, atol=1e-7):
        raise InvalidInput(
            "a record's loss depends on the other records of its batch; use nothing that mixes records, such as "
            "batch normalisation without running statistics"
        )


def _runs_side_by_side(flat: ModuleLoss, theta: Any, batch: Batch) -> bool:
    """Return whether vmap can run the module; warn if it cannot."""
    import warnings

    two = torch.stack([theta, theta])
    many = tuple(torch.stack([part, part]) for part in batch)
    uniform = torch.full((2, len(batch[-1]), flat.dropped), 0.5) if flat.dropped else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # PyTorch warns of operations that it runs one by one
            axes = (0, 0, None, None if uniform is None else 0)
            vmap(flat.step_gradient, in_dims=axes)(two, many, None, uniform)
            record_gradients(flat, theta, batch)
    except Exception as error:  # whatever the module's operations raise
        why = str(error).strip().split("\n")[0][:200]
        warnings.warn(
            "PyTorch cannot run this module on several clients side by side, so they run one by one, which is "
            f"slower: {why}", RuntimeWarning, stacklevel=5,
        )  # fmt: skip
        return False
    return True


def accuracy(found: Array, targets: Array) -> float:
    """Return the share of records whose class has the largest output or, with one output, its sign."""
    if targets.ndim == 1 and targets.dtype.kind in "biu" and found.ndim == 2 and found.shape[1] > 1:
        return float(np.mean(found.argmax(axis=1) == targets))
    if found.size == targets.size and set(np.unique(targets)) <= {0.0, 1.0}:
        return float(np.mean((found > 0.0).reshape(targets.shape) == (targets > 0)))
    raise InvalidInput(
        "accuracy needs classes: whole numbers and one output for each, or 0 and 1 and one output; the outputs "
        f"have shape {found.shape[1:]} and the targets shape {targets.shape[1:]} and type {targets.dtype}"
    )
