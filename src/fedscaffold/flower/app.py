"""The client side of Flower: a ClientApp that settles, trains, remembers and replies."""

import os
from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Engine, Problem
from fedscaffold.federation.client import ProblemWork, Work, answer
from fedscaffold.federation.messages import Hello
from fedscaffold.flower import wire

CLIENT, FOLDER = "partition-id", "memory"
Folder = str | os.PathLike[str]


def client_app(
    load: Callable[[Context], Problem | Work],
    *,
    memory: Folder | Callable[[Context], Folder] | None = None,
    engine: str | Engine = "auto",
    **options: Any,
) -> ClientApp:
    """A ClientApp that runs any of the library's methods on what `load` returns.

    Which client a node is says the key partition-id of its configuration. Method, step size, local steps, batches
    and seed come from the server. Further functions, such as an evaluation, can be registered as usual.

    Parameters
    ----------
    load
        load(context) → what this client trains: a problem with one client (`Ridge([X], [y])`, `Differentiable`,
        `problem.subset([c])`), or something of the shape of `fedscaffold.flower.Work`, such as
        `fedscaffold.flower.torch.Training`. Flower starts a process for every message, so it is called each time.
    memory
        Folder for what the client must not forget, on a disk that outlives the node; or memory(context) → folder.
        By default what the node's configuration has under the key "memory", a key that simulated nodes lack.
    engine
        For problems, as in `fedscaffold.run`.
    **options
        For `flwr.clientapp.ClientApp`, such as mods.
    """
    app = ClientApp(**options)

    def work_of(context: Context) -> Work:
        found: Any = load(context)
        return found if hasattr(found, "open") else ProblemWork(found, engine)

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        client, work = client_of(context), work_of(context)
        found = Hello(client=client, records=work.records, dim=work.dim)
        return Message(wire.packed_hello(found), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        order = wire.unpacked(message.content)
        if order.client != client_of(context):
            raise InvalidInput(f"this is client {client_of(context)}, but the order is for client {order.client}")
        work = work_of(context)
        reply = answer(order, work, _folder(memory, context))
        return Message(wire.packed_reply(reply, work.records), reply_to=message)

    return app


def client_of(context: Context) -> int:
    """Which client a node is, from its configuration."""
    found = context.node_config.get(CLIENT)
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise InvalidInput(
            f"the node's configuration must say which client it is, such as --node-config '{CLIENT}=0'; "
            f"got {found!r}"
        )
    return found


def _folder(memory: Folder | Callable[[Context], Folder] | None, context: Context) -> Folder:
    given = memory(context) if callable(memory) else memory
    found = context.node_config.get(FOLDER) if given is None else given
    if found is None or isinstance(found, bool | int | float):
        raise InvalidInput(
            "the client needs a folder for its memory: client_app(..., memory=FOLDER), or --node-config "
            f"'{FOLDER}=\"FOLDER\"'"
        )
    return found
