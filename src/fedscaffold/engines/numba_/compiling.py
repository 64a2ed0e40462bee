"""How kernels are compiled.

Numba keeps the machine code of their parts beside the source, or in the user's cache folder. Where neither can be
written, as in a container without a home, it goes to a folder of this user in the system's temporary folder; where
that is not ours alone either, nothing is kept. Whole kernels are kept by `machine_code.files`.
"""

import sys
from typing import Any

import numba
import numpy as np
from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.core import caching
from numba.core.registry import cpu_target
from numba.np.numpy_support import as_dtype

from fedscaffold.core.errors import EngineFailed
from fedscaffold.engines.numba_.machine_code import call
from fedscaffold.engines.numba_.machine_code.call import formats
from fedscaffold.engines.numba_.machine_code.files import MachineCode, own_folder

RESULTS = 2  # addresses that a compiled function gets before its arguments: for its result, and for an exception
FROM_THE_SYSTEM = ("malloc", "free")


def _can_cache() -> bool:
    """Whether Numba finds a place for the machine code of this package; sets one where it does not."""
    if _has_place():
        return True
    folder = own_folder()
    if folder is None:
        return False
    settings: Any = numba.config
    settings.CACHE_DIR = str(folder)
    return _has_place()


def _has_place() -> bool:
    """Whether one of Numba's own rules finds a folder that can be written."""
    try:
        caching.CompileResultCacheImpl(_has_place)
    except RuntimeError:  # no locator available
        return False
    return True


BARE: dict[str, Any] = {"nogil": True, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of functions that only kernels call: no arrays of their own, and nothing for calls from Python."""
compiled: Any = numba.njit(cache=_can_cache(), **BARE)
inlined: Any = numba.njit(forceinline=True, **BARE)


def numbers(dtype: Any, ndim: int) -> Any:
    """The type of an array that a kernel reads: of any layout from two dimensions on, contiguous with one."""
    return types.Array(numba.from_dtype(np.dtype(dtype)), ndim, "C" if ndim == 1 else "A", readonly=True)


def compiled_for(function: Any, *arguments: Any) -> MachineCode:
    """The machine code of a function without result, for these types of arguments alone.

    The last three are a block's begin and end, and what is written.
    """
    dispatcher = numba.njit(**BARE)(function)
    dispatcher.compile(types.void(*arguments))
    found = dispatcher.overloads[arguments]
    module, name = found.library._final_module, found.fndesc.llvm_func_name
    kinds = tuple(_kind(argument) for argument in arguments)
    words = [letter for letters in formats(kinds) for letter in letters]
    passed = ["d" if str(word.type) == "double" else "q" for word in module.get_function(name).arguments]
    if passed[RESULTS:] != words:
        raise EngineFailed(f"Numba {numba.__version__} passes arguments in another way than this version knows")
    outside = {function.name for function in module.functions if function.is_declaration}
    known = {name for name in outside if name.startswith("llvm.") or name in FROM_THE_SYSTEM}
    return MachineCode(
        kernel=found.library._get_compiled_object(),
        entry=_entry(module, name, words),
        arguments=kinds,
        needs_numba=outside != known or sys.platform not in ("linux", "darwin"),
    )


def provide_functions() -> None:
    """Let machine code find Numba's own functions."""
    cpu_target.target_context.refresh()


def _kind(argument: Any) -> str:
    """A type of Numba's as `call.Kernel` names it."""
    if isinstance(argument, types.Array):
        dtype = as_dtype(argument.dtype).str
        return call.array_of(dtype, argument.ndim, contiguous=argument.layout == "C", written=argument.mutable)
    return {INT: call.INT, FLOAT: call.FLOAT, KEY: call.PAIR, NONE: call.NONE}[argument]


def _entry(kernel: Any, name: str, words: list[str]) -> bytes:
    """A function (address of words, begin, end) that calls the kernel with them, as an object file.

    A machine passes addresses as it does whole numbers, so that no other types are needed.
    """
    whole = ir.IntType(64)
    module = ir.Module()
    module.triple, module.data_layout = kernel.triple, kernel.data_layout
    status = ir.IntType(32)
    passed = [ir.DoubleType() if word == "d" else whole for word in words]
    callee = ir.Function(module, ir.FunctionType(status, [whole] * RESULTS + passed), name)
    entry = ir.Function(module, ir.FunctionType(status, [whole.as_pointer(), whole, whole]), call.ENTRY)
    builder = ir.IRBuilder(entry.append_basic_block())
    given, begin, end = entry.args
    results = [builder.ptrtoint(builder.alloca(whole), whole) for _ in range(RESULTS)]
    last = len(words) - len(formats((_kind(OUT),))[0])  # the first word of what is written
    loaded = []
    for i, kind in enumerate(passed[: last - 2] + passed[last:]):
        address = builder.gep(given, [whole(i)])
        loaded.append(builder.load(builder.bitcast(address, kind.as_pointer())))
    arguments = [*loaded[: last - 2], begin, end, *loaded[last - 2 :]]
    builder.ret(builder.call(callee, results + arguments))
    machine = llvm.Target.from_triple(kernel.triple).create_target_machine(codemodel="jitdefault", jit=True)
    return bytes(machine.emit_object(llvm.parse_assembly(str(module))))


INT, FLOAT, KEY, NONE = numba.int64, numba.float64, types.UniTuple(numba.int64, 2), types.none
OUT = types.Array(FLOAT, 3, "C")
ROUND_ARGUMENTS = (
    *(numbers("f8", 3), numbers("f8", 3), numbers("f8", 2), FLOAT, FLOAT, numbers("i8", 2), INT, numbers("i8", 2)),
    *(KEY, INT, INT, INT, INT, OUT),
)
"""Types of what every kernel takes: θ, ξ, anchor, γ, pull, H, first step, clients; key, round, first client,
begin, end, out."""
