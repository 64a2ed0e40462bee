"""The log: a child of Flower's, so that its lines stand among Flower's own."""

import logging

LOG = logging.getLogger("flwr.fedscaffold")
