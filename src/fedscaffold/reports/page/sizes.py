"""Numbers of bytes for readers."""


def format_bytes(size: float) -> str:
    """A number of bytes in decimal units, to three digits."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} bytes"
