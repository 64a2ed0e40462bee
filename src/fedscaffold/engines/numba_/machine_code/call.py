"""Kernels that are called with NumPy's arrays: loaded from machine code, or compiled where there is none."""

import ctypes
import struct
import sys
from collections.abc import Callable
from copy import copy
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from llvmlite import binding as llvm

from fedscaffold.engines.numba_.machine_code import files
from fedscaffold.engines.numba_.machine_code.files import MachineCode

ENTRY = "fedscaffold_entry"
INT, FLOAT, PAIR, NONE = "int", "float", "pair", "none"  # what an argument is; arrays are `array_of`
FORMATS = {INT: "q", FLOAT: "d", PAIR: "qq", NONE: "q"}
BY_THEMSELVES = 2  # arguments that a call gives, begin and end; they come before the last


def array_of(dtype: str, ndim: int, *, contiguous: bool, written: bool) -> str:
    """How an array is named among a kernel's arguments: its type, dimensions, layout and use."""
    return f"{dtype} {ndim} {'C' if contiguous else 'A'} {'w' if written else 'r'}"


def formats(arguments: tuple[str, ...]) -> list[str]:
    """The letters of `struct` for the words of each argument.

    An array is seven words or more, as Numba passes it: owner and parent, which nobody needs here, size, bytes of
    an element, address, then length and stride of each dimension.
    """
    return [FORMATS.get(kind) or "q" * (5 + 2 * int(kind.split()[1])) for kind in arguments]


class Kernel:
    """A compiled kernel: `bind` takes its arguments, and gives a function of a block's begin and end.

    `given` takes those that stay the same for many calls, which are then looked at once.

    Parameters
    ----------
    code
        The kernel's machine code. Calls are checked against its arguments: what does not fit is refused, since
        the kernel itself reads memory unchecked.
    """

    def __init__(self, code: MachineCode) -> None:
        if code.needs_numba:
            import_module("fedscaffold.engines.numba_.compiling").provide_functions()
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
            codemodel="jitdefault", jit=True
        )
        empty = llvm.parse_assembly(f'target triple = "{llvm.get_process_triple()}"')
        self._loaded = llvm.create_mcjit_compiler(empty, machine)  # which owns the memory that the code is in
        for part in (code.kernel, code.entry):
            self._loaded.add_object_file(llvm.ObjectFileRef.from_data(part))
        self._loaded.finalize_object()
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)
        self._entry = kind(self._loaded.get_function_address(ENTRY))  # a call lets other threads run meanwhile
        kinds = code.arguments[: -1 - BY_THEMSELVES] + code.arguments[-1:]
        self._readers, self._formats = [_reader(kind) for kind in kinds], formats(kinds)
        self._given: tuple[Any, ...] = ()  # the first arguments, kept alive
        self._words, self._packed = b"", struct.Struct("".join(self._formats))

    def given(self, *arguments: Any) -> "Kernel":
        """The same kernel with its first arguments given."""
        found, count = copy(self), len(arguments)
        readers, letters = self._readers[:count], struct.Struct("".join(self._formats[:count]))
        found._given, found._words = self._given + arguments, self._words + _pack(letters, readers, arguments)
        found._readers, found._formats = self._readers[count:], self._formats[count:]
        found._packed = struct.Struct("".join(found._formats))
        return found

    def bind(self, *arguments: Any) -> Callable[[int, int], None]:
        """The kernel on these arguments, all that are not given but begin and end."""
        entry = self._entry
        words = self._words + _pack(self._packed, self._readers, arguments)

        def call(begin: int, end: int, kept: tuple[Any, ...] = (self, arguments)) -> None:  # memory that is read
            if entry(words, begin, end):
                raise MemoryError("there is no memory for what a kernel needs besides its arguments")

        return call


Reader = Callable[[Any], "tuple[Any, ...]"]


def _pack(letters: struct.Struct, readers: "list[Reader]", arguments: tuple[Any, ...]) -> bytes:
    """The words of some arguments."""
    words: list[Any] = []
    for reader, argument in zip(readers, arguments, strict=True):
        words += reader(argument)
    return letters.pack(*words)


def _reader(kind: str) -> Reader:
    """Gives the words of an argument of this kind."""
    if kind == NONE:
        return _nothing
    if kind in FORMATS:
        return tuple if kind == PAIR else lambda number: (number,)
    name, ndim, layout, use = kind.split()
    dtype, dimensions, contiguous, written = np.dtype(name), int(ndim), layout == "C", use == "w"

    def words(array: Any) -> tuple[Any, ...]:
        fits = isinstance(array, np.ndarray) and array.dtype == dtype and array.ndim == dimensions
        if not (fits and array.flags.aligned):
            raise TypeError(
                f"the kernel takes an array of {dimensions} dimensions of {dtype}, got {_shown(array)}"
            )
        if (contiguous and not array.flags.c_contiguous) or (written and not array.flags.writeable):
            raise TypeError("the kernel takes a contiguous array here, and writes to its result")
        return (0, 0, array.size, array.itemsize, _address(array), *array.shape, *array.strides)

    return words


def _told_address(array: Any) -> int:
    """Where the numbers of an array are, as NumPy tells it: in a microsecond, which six arrays a round notice."""
    return int(array.__array_interface__["data"][0])


def _read_address(array: Any) -> int:
    """The same from the array's first field, which NumPy's binary interface fixes."""
    return ctypes.c_ssize_t.from_address(id(array) + object.__basicsize__).value


_PROBE, _CPYTHON = np.zeros(1), sys.implementation.name == "cpython"
_address = _read_address if _CPYTHON and _read_address(_PROBE) == _told_address(_PROBE) else _told_address


def _nothing(argument: Any) -> tuple[Any, ...]:
    if argument is not None:
        raise TypeError("the kernel takes None here")
    return (0,)


def _shown(array: Any) -> str:
    return f"{getattr(array, 'ndim', '?')} of {getattr(array, 'dtype', type(array).__name__)}"


@cache
def kernel(module: str, factory: str, *arguments: Any) -> Kernel:
    """The kernel that a factory makes from some constants: kept machine code, or else compiled and kept.

    Parameters
    ----------
    module, factory
        Where the function is that compiles the kernel and returns its `MachineCode`.
    *arguments
        Of that function.
    """
    name = f"{module}.{factory}{arguments}"
    code = files.find(name)
    if code is None:
        with files.alone(name):
            code = files.find(name)  # another process may have made it meanwhile
            if code is None:
                code = getattr(import_module(module), factory)(*arguments)
                files.keep(name, code)
    return Kernel(code)
