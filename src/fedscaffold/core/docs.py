"""Parameters that several functions or classes share: documented in one docstring, shown in all of them."""

import inspect
import textwrap
from collections.abc import Callable, Collection
from typing import Any, TypeVar

T = TypeVar("T")


def shared_parameters(source: Any, *, leave_out: Collection[str] = ()) -> Callable[[T], T]:
    """Decorator that shows the documented parameters of another class in a function or class.

    A line {Name}, with the name of the other class, in the decorated docstring is replaced by the entries of that
    class's Parameters section, and {Name attributes} by those of its Attributes section. Keyword arguments that a
    decorated function takes as **options appear as these parameters, with their defaults, in its signature.

    Parameters
    ----------
    source
        The class whose docstring has the Parameters section.
    leave_out
        Names of parameters that are not inserted.
    """

    def decorate(target: Any) -> Any:
        if source.__doc__ and target.__doc__:
            text = inspect.cleandoc(target.__doc__)
            for mark, section in (("", "Parameters"), (" attributes", "Attributes")):
                entries = parameter_entries(source.__doc__, section)
                wanted = "\n".join(entry for name, entry in entries.items() if name not in leave_out)
                text = text.replace(f"{{{source.__name__}{mark}}}", wanted)
            target.__doc__ = text
        if not isinstance(target, type):
            target.__signature__ = _with_options(inspect.signature(target), source, leave_out)
        return target

    return decorate


def parameter_entries(docstring: str, section: str = "Parameters") -> dict[str, str]:
    """Entries of a section of a numpydoc docstring, not indented, by the name that each one begins with."""
    _, _, after = inspect.cleandoc(docstring).partition(f"{section}\n{'-' * len(section)}\n")
    entries = after.partition("\n\n")[0]
    found: dict[str, str] = {}
    name = ""
    for line in textwrap.dedent(entries).splitlines():
        if line.startswith(" "):
            found[name] += f"\n{line}"
        else:
            name = line
            found[name] = line
    return found


def _with_options(signature: inspect.Signature, source: Any, leave_out: Collection[str]) -> inspect.Signature:
    """A signature in which the parameters of `source` take the place of **options."""
    parameters = dict(signature.parameters)
    kept = [one for one in parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    if len(kept) < len(parameters):
        options = inspect.signature(source).parameters
        kept += [one for name, one in options.items() if name not in parameters and name not in leave_out]
    return signature.replace(parameters=kept)
