"""The log of federated runs: a logger of its own, which a transport may show among its own lines."""

import logging

LOG = logging.getLogger("fedscaffold.federation")
