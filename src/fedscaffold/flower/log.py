"""One log on Flower: the lines of the protocol and of this package stand among Flower's own."""

import logging

from fedscaffold.federation.log import LOG as PROTOCOL_LOG

FLOWER_LOG = logging.getLogger("flwr")
LOG = FLOWER_LOG.getChild("fedscaffold")


class _FlowerHandlers(logging.Handler):
    """A handler that passes lines on to the handlers that Flower's logger has at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        for handler in FLOWER_LOG.handlers:
            if record.levelno >= handler.level:
                handler.handle(record)


def show_protocol_log() -> None:
    """Write the lines of the protocol's log to Flower's handlers from now on."""
    if not any(isinstance(handler, _FlowerHandlers) for handler in PROTOCOL_LOG.handlers):
        PROTOCOL_LOG.addHandler(_FlowerHandlers())
        PROTOCOL_LOG.setLevel(logging.DEBUG)  # Flower's handlers have their own levels
