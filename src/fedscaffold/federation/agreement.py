"""The coding that sites agree on, under its name in federations."""

from fedscaffold.models.coding import Coding as Agreement

__all__ = ["Agreement"]
