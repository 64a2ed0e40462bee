"""Things LLVM can do and Numba cannot say: bare pointers, memory on the stack or from the system, prefetches.

They exist for speed alone. Numba counts references to arrays and tests indices for negative values,
inside the hot loop too; a bare pointer, indexed like an array, does neither. Memory on the stack cannot
alias the records, so that loops over features vectorise without run-time checks. Memory that comes from the
system, instead of Numba's own functions, lets a kernel be loaded without Numba. Nothing here checks
bounds: the engine does, before the kernel starts.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

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
def scratch(typing_context: Any, size: Any, dtype: Any) -> Any:
    """An array of `size` uninitialised elements, which begins a cache line, until it is given to `discard`."""
    array = types.Array(parse_dtype(dtype), 1, "C")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        count, element = args[0], context.get_data_type(array.dtype)
        itemsize = context.get_constant(types.intp, context.get_abi_sizeof(element))
        malloc = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(cgutils.voidptr_t, [count.type]), "malloc"
        )
        line = count.type(CACHE_LINE)
        memory = builder.call(malloc, [builder.add(builder.mul(count, itemsize), line)])
        with cgutils.if_unlikely(builder, cgutils.is_null(builder, memory)):
            context.call_conv.return_user_exc(builder, MemoryError, ())
        begin = builder.ptrtoint(memory, count.type)
        aligned = builder.and_(builder.add(begin, line), count.type(-CACHE_LINE))
        data = builder.inttoptr(aligned, element.as_pointer())
        builder.store(begin, _place_before(builder, data, count.type))  # for `discard`
        made = context.make_array(array)(context, builder)
        populate_array(made, data=data, shape=[count], strides=[itemsize], itemsize=itemsize, meminfo=None)
        return made._getvalue()

    return array(types.intp, dtype), generate


@intrinsic
def discard(typing_context: Any, array: Any) -> Any:
    """Give the memory of an array that `scratch` made back to the system."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data, intp = context.make_array(array)(context, builder, args[0]).data, context.get_value_type(types.intp)
        memory = builder.inttoptr(builder.load(_place_before(builder, data, intp)), cgutils.voidptr_t)
        free = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t]), "free"
        )
        builder.call(free, [memory])
        return context.get_dummy_value()

    return types.void(array), generate


def _place_before(builder: Any, data: Any, intp: Any) -> Any:
    """The address of the word before the data; `malloc` aligns what it gives, so that there is room for one."""
    return builder.gep(builder.bitcast(data, intp.as_pointer()), [intp(-1)])


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
