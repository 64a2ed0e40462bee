"""Three things LLVM can do and Numba cannot say: bare pointers, memory on the stack, prefetches.

They exist for speed alone. Numba counts references to arrays and tests indices for negative values,
inside the hot loop too; a bare pointer, indexed like an array, does neither. Memory on the stack cannot
alias the records, so that loops over features vectorise without run-time checks. Nothing here checks
bounds: the engine does, before the kernel starts.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

CACHE_LINE = 64


@intrinsic
def pointer(typing_context: Any, array: Any) -> Any:
    """The address of a contiguous array's first element; None for None."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if isinstance(array, types.NoneType):
            return context.get_dummy_value()
        return context.make_array(array)(context, builder, args[0]).data

    found = types.none if isinstance(array, types.NoneType) else types.CPointer(array.dtype)
    return found(array), generate


@intrinsic
def shifted(typing_context: Any, base: Any, index: Any) -> Any:
    """The address of base[index]."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.gep(args[0], [args[1]])

    return base(base, types.intp), generate


@intrinsic(prefer_literal=True)
def on_stack(typing_context: Any, size: Any, like: Any) -> Any:
    """Room for `size` uninitialised elements of like's type, gone when the calling function returns.

    Where the size is a constant, LLVM may keep the elements in registers.
    """
    fixed = getattr(size, "literal_value", None)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = context.get_data_type(like.dtype)
        if fixed is not None:
            whole = cgutils.alloca_once(builder, ir.ArrayType(element, fixed))
            whole.align = CACHE_LINE
            return builder.bitcast(whole, element.as_pointer())
        memory = builder.alloca(element, size=args[0])
        memory.align = CACHE_LINE
        return memory

    # a constant stays part of the signature, by which Numba tells one generated code from another
    return types.CPointer(like.dtype)(types.intp if fixed is None else size, like), generate


@intrinsic
def prefetch(typing_context: Any, base: Any, index: Any) -> Any:
    """Ask for the cache line of base[index] to come to the second-level cache; harmless for any index."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = builder.bitcast(builder.gep(args[0], [args[1]]), cgutils.voidptr_t)
        int32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, int32, int32, int32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, second_level, data_cache = (ir.Constant(int32, k) for k in (0, 2, 1))
        builder.call(function, [address, read, second_level, data_cache])
        return context.get_dummy_value()

    return types.void(base, types.intp), generate
