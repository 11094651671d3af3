"""The collectives of a process group. Names and arguments are torch's."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from choreo.errors import UsageError
from choreo.run.execute.arrays import Array
from choreo.torch_backend.calls import Calls, group_call, only, options, reduction
from choreo.torch_backend.sparse import all_reduce_sparse
from choreo.torch_backend.tensors import Finish, flat, flat_bytes, into, joined

__all__ = ["Collectives"]


class Collectives(Calls):
    """The collectives of a process group."""

    @group_call
    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Every rank gets the reduction, in place."""
        opts, tensor = options(AllreduceOptions, opts, timeout), only(tensors)
        if not tensor.is_cpu:
            return self._other(tensor).allreduce([tensor], opts)
        if tensor.is_sparse:
            all_reduce_sparse(self.comm, tensor, reduction(opts.reduceOp, self._size))
            return self._start("all_reduce", [tensor], list, [tensor], [])
        finish: Finish = []
        held = opts.asyncOp and self._held.begin(2)
        try:
            return self._run(
                "all_reduce", [tensor], opts, [tensor], finish, self._all_reduce(tensor, opts.reduceOp, finish)
            )
        finally:
            if held:
                self._held.end()

    @group_call
    def allreduce_coalesced(self, tensors: list[Any], opts: Any = None) -> Any:
        """`allreduce` of each tensor."""
        opts = options(AllreduceCoalescedOptions, opts, None)
        if not tensors[0].is_cpu:
            return self._other(tensors[0]).allreduce_coalesced(tensors, opts)
        finish: Finish = []
        return self._run(
            "all_reduce",
            tensors,
            opts,
            tensors,
            finish,
            *(self._all_reduce(tensor, opts.reduceOp, finish) for tensor in tensors),
        )

    @group_call
    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Every rank gets the root's tensor, in place."""
        opts = options(BroadcastOptions, opts, timeout, rootRank=opts if type(opts) is int else None)
        tensor = only(tensors)
        if not tensor.is_cpu:
            return self._other(tensor).broadcast([tensor], opts)
        finish: Finish = []
        array = into(tensor, finish, flat_bytes)
        return self._run(
            "broadcast", [tensor], opts, [tensor], finish, partial(self.comm.broadcast, array, opts.rootRank)
        )

    @group_call
    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Any:
        """The root gets the reduction, in place."""
        opts = options(ReduceOptions, opts, timeout, rootRank=opts if type(opts) is int else None, reduceOp=op)
        tensor = only(tensors)
        if not tensor.is_cpu:
            return self._other(tensor).reduce([tensor], opts)
        finish: Finish = []
        how, at_root = reduction(opts.reduceOp, self._size), self.comm.rank == opts.rootRank
        array = into(tensor, finish) if at_root else flat(how.before(tensor))
        if at_root:
            how.after(tensor, finish)
            if how.factor is not None:
                tensor.mul_(how.factor)
        return self._run(
            "reduce", [tensor], opts, [tensor], finish, partial(self.comm.reduce, array, opts.rootRank, how.op)
        )

    @group_call
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Every rank gets the tensors of all, which may differ in size."""
        opts, tensor = options(AllgatherOptions, opts, timeout), only(inputs)
        found = outputs[0] if isinstance(outputs[0], list) else outputs
        if not tensor.is_cpu:
            return self._other(tensor).allgather([found], [tensor], opts)
        finish: Finish = []
        return self._run("all_gather", [tensor], opts, found, finish, self._all_gather(found, tensor, finish))

    @group_call
    def allgather_coalesced(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Any:
        """`allgather` of each tensor; `outputs` has a list for each rank."""
        opts = options(AllgatherOptions, opts, None)
        if not inputs[0].is_cpu:
            return self._other(inputs[0]).allgather_coalesced(outputs, inputs, opts)
        finish: Finish = []
        if len(outputs) != self._size or any(len(output) != len(inputs) for output in outputs):
            raise UsageError(f"all_gather_coalesced needs {self._size} lists of {len(inputs)} tensors")
        calls = [
            self._all_gather([by_rank[at] for by_rank in outputs], tensor, finish) for at, tensor in enumerate(inputs)
        ]
        return self._run(
            "all_gather", inputs, opts, [tensor for by_rank in outputs for tensor in by_rank], finish, *calls
        )

    @group_call
    def all_gather_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """Every rank gets the tensors of all, one after another in `output`."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    @group_call
    def all_gather_single_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any = None) -> Any:
        """`all_gather_single` of each tensor."""
        opts = options(AllgatherOptions, opts, None)
        if not inputs[0].is_cpu:
            return self._other(inputs[0]).all_gather_single_coalesced(outputs, inputs, opts)
        finish: Finish = []
        calls = []
        for output, tensor in zip(outputs, inputs, strict=True):
            if output.numel() != tensor.numel() * self._size or output.dtype is not tensor.dtype:
                raise UsageError(
                    f"all_gather: the output has {output.numel()} elements of {output.dtype}, and must have "
                    f"{self._size} times {tensor.numel()} of {tensor.dtype}"
                )
            given = flat_bytes(tensor)
            room = into(output, finish, flat_bytes).reshape(self._size, -1)
            calls.append(partial(self.comm.all_gather, given, out=room))
        return self._run("all_gather", inputs, opts, outputs, finish, *calls)

    @group_call
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Each rank gets its tensor of the reduced lists; the tensors of a list may differ in size."""
        opts, output = options(ReduceScatterOptions, opts, timeout), only(outputs)
        given = inputs[0] if isinstance(inputs[0], list) else inputs
        if not output.is_cpu:
            return self._other(output).reduce_scatter([output], [given], opts)
        if len(given) != self._size:
            raise UsageError(f"reduce_scatter got {len(given)} tensors; it needs one for each of {self._size} ranks")
        finish: Finish = []
        counts = [tensor.numel() for tensor in given]
        sizes = None if len(set(counts)) == 1 else counts
        how = reduction(opts.reduceOp, self._size)
        array = flat(how.before(_concatenated(given)))
        room = into(output, finish)
        how.after(output, finish)
        return self._run(
            "reduce_scatter",
            given,
            opts,
            [output],
            finish,
            partial(self.comm.reduce_scatter, array, how.op, sizes=sizes, out=room),
        )

    @group_call
    def reduce_scatter_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """Each rank gets its part of the reduced tensors."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    @group_call
    def reduce_scatter_single_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any = None) -> Any:
        """`reduce_scatter_single` of each tensor."""
        opts = options(ReduceScatterOptions, opts, None)
        if not inputs[0].is_cpu:
            return self._other(inputs[0]).reduce_scatter_single_coalesced(outputs, inputs, opts)
        finish: Finish = []
        how = reduction(opts.reduceOp, self._size)
        calls = []
        for output, tensor in zip(outputs, inputs, strict=True):
            if output.numel() * self._size != tensor.numel() or output.dtype is not tensor.dtype:
                raise UsageError(
                    f"reduce_scatter: the input has {tensor.numel()} elements of {tensor.dtype}, and must have "
                    f"{self._size} times {output.numel()} of {output.dtype}"
                )
            array = flat(how.before(tensor))
            room = into(output, finish)
            how.after(output, finish)
            calls.append(partial(self.comm.reduce_scatter, array, how.op, out=room))
        return self._run("reduce_scatter", inputs, opts, outputs, finish, *calls)

    @group_call
    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        """The root gets the tensors of all."""
        opts = options(GatherOptions, opts, timeout, rootRank=opts if type(opts) is int else None)
        tensor = only(inputs)
        if not tensor.is_cpu:
            return self._other(tensor).gather(outputs, [tensor], opts)
        finish: Finish = []
        given, room = flat_bytes(tensor), None
        found: list[Any] = []
        if self.comm.rank == opts.rootRank:
            found = outputs[0] if outputs and isinstance(outputs[0], list) else outputs
            room = self._room(found, tensor, finish, given.size, "gather")
        return self._run(
            "gather", [tensor], opts, found, finish, partial(self.comm.gather, given, opts.rootRank, out=room)
        )

    @group_call
    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Each rank gets its tensor of the root's list."""
        opts = options(ScatterOptions, opts, timeout, rootRank=opts if type(opts) is int else None)
        output = only(outputs)
        if not output.is_cpu:
            return self._other(output).scatter([output], inputs, opts)
        finish: Finish = []
        room, array = into(output, finish, flat_bytes), None
        given: list[Any] = []
        if self.comm.rank == opts.rootRank:
            given = inputs[0] if inputs and isinstance(inputs[0], list) else inputs
            if len(given) != self._size or any(tensor.numel() != output.numel() for tensor in given):
                raise UsageError(f"scatter: the root must give {self._size} tensors of {output.numel()} elements")
            array = flat_bytes(_concatenated(given))
        return self._run(
            "scatter", given, opts, [output], finish, partial(self.comm.scatter, array, opts.rootRank, out=room)
        )

    @group_call
    def all_to_all_single(  # noqa: PLR0917 - as C++ calls it
        self,
        output: Any,
        tensor: Any,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,
        timeout: Any = None,
    ) -> Any:
        """Rows of the tensor go to each rank, and come from each; without sizes, the same number each."""
        opts = options(AllToAllOptions, opts, timeout)
        if not tensor.is_cpu:
            return self._other(tensor).all_to_all_single(output, tensor, output_sizes, input_sizes, opts)
        finish: Finish = []
        given, room = flat_bytes(tensor), into(output, finish, flat_bytes)
        if not output_sizes and not input_sizes:
            call = partial(self.comm.all_to_all, given, out=room)
        else:
            sent = _elements(tensor, given, input_sizes, self._size)
            received = _elements(output, room, output_sizes, self._size)
            call = partial(self.comm.all_to_all, given, send_sizes=sent, recv_sizes=received, out=room)
        return self._run("all_to_all", [tensor], opts, [output], finish, call)

    @group_call
    def alltoall(self, outputs: list[Any], inputs: list[Any], opts: Any = None, timeout: Any = None) -> Any:
        """A tensor goes to each rank, and one comes from each."""
        opts = options(AllToAllOptions, opts, timeout)
        if not inputs[0].is_cpu:
            return self._other(inputs[0]).alltoall(outputs, inputs, opts)
        finish: Finish = []
        given = flat_bytes(_concatenated(inputs))
        item = inputs[0].element_size() // given.itemsize
        counts = [tensor.numel() * item for tensor in inputs], [tensor.numel() * item for tensor in outputs]
        room = _scattered(outputs, finish)
        call = partial(self.comm.all_to_all, given, send_sizes=counts[0], recv_sizes=counts[1], out=room)
        return self._run("all_to_all", inputs, opts, outputs, finish, call)

    @group_call
    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        """Wait until all ranks have called it."""
        return self._run("barrier", [], options(BarrierOptions, opts, timeout), [], [], partial(self.comm.barrier))

    # The names that these had before torch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _all_reduce(self, tensor: Any, op: Any, finish: Finish) -> partial[Any]:
        how = reduction(op, self._size)
        if how.factor is not None:
            tensor.mul_(how.factor)
        array = into(tensor, finish)
        how.after(tensor, finish)
        return partial(self.comm.all_reduce, array, how.op)

    def _all_gather(self, outputs: list[Any], tensor: Any, finish: Finish) -> partial[Any]:
        given = flat_bytes(tensor)
        item = tensor.element_size() // given.itemsize
        most = max((output.numel() for output in outputs), default=0) * item
        if given.size < most:  # sizes differ: all send as much as the greatest
            padded = tensor.new_zeros(most // item)
            padded[: tensor.numel()] = tensor.reshape(-1)
            given = flat_bytes(padded)
        room = self._room(outputs, tensor, finish, most, "all_gather")
        return partial(self.comm.all_gather, given, out=room)

    def _room(self, outputs: list[Any], like: Any, finish: Finish, count: int, name: str) -> Array:
        """An array of `count` elements for each rank, whose rows are, or become, the tensors."""
        if len(outputs) != self._size:
            raise UsageError(f"{name} got {len(outputs)} output tensors; it needs one for each of {self._size} ranks")
        if any(output.dtype is not like.dtype for output in outputs):
            raise UsageError(f"{name}: the outputs must be of {like.dtype}, as the input is")
        whole = joined(outputs)
        if whole is None or flat_bytes(whole).size != count * self._size:
            sides = [len(outputs), count // max(1, flat_bytes(like).size // max(1, like.numel()))]
            whole = like.new_empty(sides)
            finish.append(lambda: _copy_rows(whole, outputs))
        return flat_bytes(whole).reshape(self._size, -1)


def _copy_rows(table: Any, tensors: list[Any]) -> None:
    for row, tensor in zip(table, tensors, strict=True):
        tensor.detach().copy_(row[: tensor.numel()].view(tensor.shape))


def _concatenated(tensors: list[Any]) -> Any:
    """The elements of all tensors, one after another; not copied if they are already contiguous."""
    whole = joined(tensors)
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if whole is None else whole


def _scattered(tensors: list[Any], finish: Finish) -> Array:
    """An array for all elements, one after another, which are copied to the tensors in the end."""
    whole = joined(tensors)
    if whole is None:
        whole = tensors[0].new_empty(sum(tensor.numel() for tensor in tensors))
        finish.append(lambda: _copy_parts(whole, tensors))
    return flat_bytes(whole)


def _copy_parts(whole: Any, tensors: list[Any]) -> None:
    for part, tensor in zip(whole.split([tensor.numel() for tensor in tensors]), tensors, strict=True):
        tensor.detach().copy_(part.view(tensor.shape))


def _elements(tensor: Any, array: Array, rows: list[int], world_size: int) -> list[int]:
    """The number of elements of the array that belong to each rank, from numbers of rows."""
    if not rows:
        return [array.size // world_size] * world_size
    row = array.size // len(tensor) if len(tensor) else 0
    return [count * row for count in rows]
