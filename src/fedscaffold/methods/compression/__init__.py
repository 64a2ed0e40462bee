"""Compressors of what clients send, small objects each; methods name them by a text such as "random_k:0.1"."""

from functools import lru_cache
from typing import Any

from fedscaffold.core.checks import given
from fedscaffold.core.errors import InvalidInput
from fedscaffold.methods.compression.top_k import TopK
from fedscaffold.methods.compression.unbiased import Identity, Natural, Quantised, RandomK

__all__ = ["Identity", "Natural", "Quantised", "RandomK", "TopK", "compressor_of"]

NAMES = "identity, natural, random_k:SHARE, top_k:SHARE or quantised:LEVELS"


@lru_cache(maxsize=64)
def compressor_of(text: str) -> Any:
    """Return the compressor that a text names, for example "random_k:0.1".

    Parameters
    ----------
    text
        "identity", "natural", "random_k:SHARE", "top_k:SHARE" or "quantised:LEVELS".

    Examples
    --------
    >>> from fedscaffold.methods.compression import compressor_of
    >>> compressor_of("random_k:0.1").bits(dim=300, participants=10)
    1920.0
    """
    name, _, setting = text.partition(":")
    try:
        if name in ("random_k", "top_k"):
            return {"random_k": RandomK, "top_k": TopK}[name](float(setting))
        if name == "quantised":
            return Quantised(int(setting))
        if not setting:
            return {"identity": Identity, "natural": Natural}[name]()
    except (KeyError, ValueError):
        pass
    raise InvalidInput(f"compression must be {NAMES}, got {given(text)}")


def text_of(compression: Any) -> str:
    """Return the text of a compressor, or the text itself once it is known to name one."""
    text = getattr(compression, "text", compression)
    if not isinstance(text, str):
        raise InvalidInput(f"compression must be {NAMES}, got {given(compression)}")
    return str(compressor_of(text).text)


def __dir__() -> list[str]:
    return __all__
