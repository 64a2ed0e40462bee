"""The attacks on federations share the settings of the federation's own tests."""

from tests.federation.conftest import no_waiting_for_disks

__all__ = ["no_waiting_for_disks"]
