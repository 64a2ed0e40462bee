"""The client's side on Flower: a ClientApp that answers the server's requests."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedscaffold.core.files import Fields
from fedscaffold.core.protocols import Engine, Method, Problem
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.client.requests import Site, answer_hello, answer_request
from fedscaffold.federation.client.task import LocalTask, ProblemTask
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.run_config import find_method
from fedscaffold.flower import wire

CLIENT_KEY, STATE_DIR_KEY, POLICY_KEY = "partition-id", "state-dir", "policy"  # of a node's configuration
Folder = str | os.PathLike[str]


def client_app(
    load: Callable[[Context], Problem | LocalTask],
    *,
    state_dir: Folder | Callable[[Context], Folder] | None = None,
    engine: str | Engine = "auto",
    methods: Sequence[type[Method]] = (),
    policy: SitePolicy | Folder | None = None,
    **options: Any,
) -> ClientApp:
    """Build a ClientApp that runs the server's method on the task that `load` returns.

    The key partition-id of a node's configuration says which client it is. Method, step size, local steps, batches
    and seed come from the server, within what the site's policy allows. Further functions, such as an evaluation,
    can be registered on the app as usual.

    If anything goes wrong at the site, the server receives a code and nothing else: the text, which may hold
    values of the site's table, goes to the site's own log and to audit.jsonl in its folder.

    Parameters
    ----------
    load
        load(context) → the task of this client: a problem with one client (`Ridge([X], [y])`, `Differentiable`,
        `problem.subset([c])`), or an object with the interface of `LocalTask`, such as
        `fedscaffold.flower.torch.Training`. Flower starts a process for every message, so it is called for each.
    state_dir
        Folder for the client state, on a disk that outlives the node; or a function state_dir(context) → folder.
        By default the value of the key state-dir in the node's configuration, which nodes of a simulation lack.
    engine
        For problems, as in `fedscaffold.run`.
    methods
        Further classes of methods that this node runs, besides the methods of the library and of packages with
        the entry point group "fedscaffold.methods". The server only names a method; a node never imports anything
        else because a server names it.
    policy
        Policy of the site if the key policy of the node's configuration does not name a TOML file: a `SitePolicy`,
        or the path of such a file. By default the defaults of `SitePolicy`.
    **options
        For `flwr.clientapp.ClientApp`, such as mods.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold import flower
    >>> def load(context):
    ...     rng = np.random.default_rng(flower.client_of(context))
    ...     return fs.problems.Ridge([rng.normal(size=(20, 3))], [rng.normal(size=20)], l2=0.1)
    >>> type(flower.client_app(load, state_dir="/var/lib/federation")).__name__
    'ClientApp'
    """
    for method in methods:
        find_method(method.__name__, methods)  # raises if one of the library's methods has this name
    app = ClientApp(**options)

    def site_of(context: Context) -> Site:
        def task() -> LocalTask:
            found = load(context)
            return found if isinstance(found, LocalTask) else ProblemTask(found, engine)

        return Site(
            client=lambda: client_of(context),
            task=task,
            state_dir=lambda: _state_dir(state_dir, context),
            policy=lambda: _policy(policy, context),
            methods=methods,
        )

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        return Message(wire.to_records(answer_hello(site_of(context))), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = answer_request(lambda: wire.from_records(message.content), site_of(context), wire.decode_vector)
        return Message(wire.to_records(reply), reply_to=message)

    return app


def client_of(context: Context) -> int:
    """Return the index of the client that a node is, from the key partition-id of its configuration.

    Parameters
    ----------
    context
        The context that Flower passes to the functions of an app.

    Examples
    --------
    >>> from flwr.app import Context, RecordDict
    >>> from fedscaffold import flower
    >>> flower.client_of(Context(1, 7, {"partition-id": 2}, RecordDict(), {}))
    2
    """
    found = context.node_config.get(CLIENT_KEY)
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise Refusal(
            RefusalCode.WRONG_CLIENT,
            f"the node's configuration must say which client it is, such as --node-config '{CLIENT_KEY}=0'; "
            f"got {found!r}",
        )
    return found


def _state_dir(given: Folder | Callable[[Context], Folder] | None, context: Context) -> Folder:
    chosen = given(context) if callable(given) else given
    found = context.node_config.get(STATE_DIR_KEY) if chosen is None else chosen
    if found is None or isinstance(found, bool | int | float):
        raise Refusal(
            RefusalCode.NO_STATE_DIR,
            "the client needs a folder for its state: client_app(..., state_dir=FOLDER), or --node-config "
            f"'{STATE_DIR_KEY}=\"FOLDER\"'",
        )
    return found


def _policy(given: SitePolicy | Folder | None, context: Context) -> SitePolicy:
    """Return the policy of the file that the node names, since an app may come from elsewhere; else the app's."""
    if POLICY_KEY in context.node_config:
        return SitePolicy.load(Fields(context.node_config, "the node's configuration").text(POLICY_KEY))
    if given is None or isinstance(given, SitePolicy):
        return given or SitePolicy()
    return SitePolicy.load(given)
