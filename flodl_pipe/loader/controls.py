"""What a loop may do with a loader beside iterating it: turn knobs of the device, tell its speed, close it."""

import contextlib
import weakref
from typing import Self

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import LoaderError
from flodl_pipe.loader.delivered import Delivered
from flodl_pipe.loader.device_side import DeviceSide
from flodl_pipe.loader.facts import LoaderFacts
from flodl_pipe.loader.iteration import LoaderIterator
from flodl_pipe.loader.watch import Watch
from flodl_pipe.units import parse_bytes

__all__ = ["LoaderControls"]


class LoaderControls(LoaderFacts):
    """The knobs of :class:`flodl_pipe.Loader` that can be turned at run time. On a CPU there is nothing to turn."""

    _closed: bool
    _context: RunContext
    _finalizer: weakref.finalize  # type: ignore[type-arg]  # of anything
    _iterator: weakref.ref[LoaderIterator] | None
    _watch: Watch

    @property
    def prefetch_depth(self) -> int:
        """Steps that are kept in flight: on the device, or on the CPU read ahead of the loop."""
        side = self._engine.side
        return self._engine.plan.depth if side is None else side.depth

    def set_prefetch_depth(self, depth: int) -> None:
        """Keep this many steps in flight on the device from now on; the depth no longer adapts by itself.

        Args:
            depth: Steps, at least 1.

        Raises:
            LoaderError: if it is less than 1, or batches are delivered on the CPU.
            StagingError: if that many do not fit.
        """
        side = self._side("set_prefetch_depth")
        if type(depth) is not int:
            raise LoaderError(f"set_prefetch_depth({depth!r}): the depth must be a whole number of at least 1")
        side.set_prefetch_depth(depth)

    def auto_resize(self) -> None:
        """Size the steps in flight and the sample pool by the device memory that is free now.

        The depth no longer adapts by itself afterwards; call it again, between epochs, when memory has come or gone.

        Raises:
            LoaderError: if batches are delivered on the CPU.
        """
        self._side("auto_resize").auto_resize()

    def set_activation_reserve(self, num_bytes: int | str | None) -> None:
        """State how much device memory a training step takes beside the model; None: it is seen after the first steps.

        Args:
            num_bytes: Bytes, or text such as ``"2GiB"``.

        Raises:
            LoaderError: if it is negative, or batches are delivered on the CPU.
        """
        side = self._side("set_activation_reserve")
        if isinstance(num_bytes, str):
            try:
                num_bytes = parse_bytes(num_bytes)
            except ValueError as error:
                raise LoaderError(f"set_activation_reserve: {error}") from None
        if num_bytes is not None and type(num_bytes) is not int:
            raise LoaderError(f"set_activation_reserve({num_bytes!r}): must be bytes, text such as '2GiB', or None")
        side.set_activation_reserve(num_bytes)

    def pause(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the loader does nothing on the device, for example while a CUDA graph is captured.

        Readers go on reading on the host. A batch that is ready may be taken inside; where none is, ``next`` raises a
        ``LoaderError`` instead of waiting for ever.
        """
        side = self._engine.side
        return contextlib.nullcontext() if side is None else side.pause()

    @property
    def shares(self) -> tuple[int, ...]:
        """Rows of each rank in a full step, by global rank, as they are now; empty for a stream."""
        steps = self._engine.steps
        if steps is None:
            return ()
        return tuple(steps.of_rank(rank).batch_rows for rank in range(steps.world_size))

    def compute_done(self) -> None:
        """Tell that this rank has computed on every batch so far, before it waits for other ranks.

        For ``cluster.balance=auto`` in a loop without :func:`flodl_pipe.attach`: call it in each step before the first
        thing in which ranks wait for each other. With an all-reduce of one's own that is after the backward pass; under
        DistributedDataParallel it is before it, for its backward pass waits for the slowest rank, and so do both passes
        under FSDP: times with waiting in them are alike on all ranks, and shares would stay equal. It waits for
        nothing.
        """
        self._watch.clock.computed()

    @property
    def context(self) -> RunContext:
        """This process among all that share the steps."""
        return self._context

    def watched(self) -> Watch:
        """Return what is told of every step from now on; for :func:`flodl_pipe.attach`."""
        steps = self._engine.steps
        if self._watch.delivered is None:
            self._watch.delivered = Delivered(
                may_differ=steps is None or not steps.is_even or steps.drop_last is not True
            )
            if self._iterator is not None:
                self._watch.delivered.miss()
        iterator = None if self._iterator is None else self._iterator()
        if iterator is not None:
            iterator.watch = self._watch
        return self._watch

    def close(self) -> None:
        """Stop every thread, give back memory and files. Batches that were handed out stay valid."""
        self._closed = True
        self._end_iterator("the loader was closed; build a new one")
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_iterator(self, why: str) -> bool:
        iterator = None if self._iterator is None else self._iterator()
        self._iterator = None
        return iterator is not None and iterator.end(why)

    def _side(self, what: str) -> DeviceSide:
        if self._closed:
            raise LoaderError(f"{what}(): this loader was closed; build a new one")
        side = self._engine.side
        if side is None:
            raise LoaderError(
                f"{what}() is about device memory, and this loader delivers on the CPU; set loader.prefetch, "
                "loader.ram_max_usage or loader.sample_cache when it is built"
            )
        return side
