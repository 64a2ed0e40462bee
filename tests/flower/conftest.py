"""The tests of federations on Flower share the settings of those without."""

from tests.federation.conftest import no_waiting_for_disks

__all__ = ["no_waiting_for_disks"]
