"""The loader: iterate it for batches, save and load its place in the stream."""

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, final

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.loader import SimulatedConfig
from flodl_pipe.config.sampling import OrderName
from flodl_pipe.errors import LoaderError
from flodl_pipe.loader.arguments import OMITTED, Omitted, grouped, ragged_fields, split_arguments
from flodl_pipe.loader.controls import LoaderControls
from flodl_pipe.loader.feed import Feed
from flodl_pipe.loader.identity import Spot
from flodl_pipe.loader.iteration import LoaderIterator
from flodl_pipe.loader.make_feed import make_feed
from flodl_pipe.loader.outline import first_global_batch
from flodl_pipe.loader.passes import Passes
from flodl_pipe.loader.resume import agree_on_place, built_by_all, continue_from
from flodl_pipe.loader.statistics import Counters
from flodl_pipe.loader.watch import Watch
from flodl_pipe.sampling.cursor import Cursor
from flodl_pipe.sources.any_source import as_source

__all__ = ["Loader"]

_log = logging.getLogger("flodl_pipe")


@final
class Loader(LoaderControls):
    """Batches of a source, in a keyed order, read ahead of the training loop.

    ::

        for epoch in range(3):
            for x, y in loader.epoch(epoch):
                ...

    ``iter(loader)`` continues at the cursor after :meth:`load_state_dict`, starts the next epoch after a pass that
    finished, and starts its epoch over after a pass that was broken off. One iterator is live at a time: a second one
    ends the first. A loader serves one thread.

    Args:
        source: A source (:class:`flodl_pipe.Source`), a stream, a dataset with ``len()`` and ``[index]`` like torch's,
            or an iterable.
        batch_size: Rows per step on one rank. None: samples are delivered one by one, without a batch axis.
        global_batch_size: Rows per step over all ranks; decides when set.
        names: Other names for the batch's fields, in field order.
        collate: How samples become a batch: ``"stack"``, ``"pad"``, ``"ragged"`` (nested tensors), or a function that
            takes the list of samples and returns tensors, or a tuple or dict of them.
        ragged: Names of fields of a user's dataset whose rows may differ in length; or whether to look for such fields
            (as with None, unless batches are stacked).
        pure: Whether a sample is the same every time; else it is seeded by its pick, and kept by no tier.
        thread_safe: Whether several threads may read a user's dataset at once; None: what its attribute of this name
            says, and that arrays, tensors, lists and Hugging Face datasets are.
        pad_id: What ``"pad"`` fills integer fields with; labels are filled with -100.
        pad_multiple: Padded lengths are multiples of this.
        pad_length: The padded length; None: the longest row of a batch, rounded up.
        labels_from: With ``"pad"``, add ``labels``: the ids of this field, and -100 where it was filled up.
        transforms: What is done to batches: a callable ``(batch, keys)``, or a sequence or a dict of them.
        global_batch_on_resume: ``"keep"`` the saved global batch, or ``"scale"`` to this run's own.
        device: Where batches are delivered: ``auto``, ``cuda``, ``cuda:1``, ``xpu``, ``mps``, ``cpu`` or ``simulated``.
        mode: ``"resident"`` keeps the whole source in memory, ``"streaming"`` does not, ``"auto"`` decides.
        prefetch: Steps read ahead, or ``"auto"``.
        readers: Reader threads (or processes), or ``"auto"``; 0 reads inside ``next()``.
        reader_kind: ``"process"`` for datasets whose samples are made by slow Python code.
        reader_start: How processes are started; ``"fork"`` where the dataset cannot be pickled.
        vram_max_usage: Share of device memory that may be in use.
        vram_pool: Whether samples that were uploaded stay on the device.
        activation_reserve: Bytes of device memory that a training step needs beside the model, or ``"2GiB"``.
        gpu_ram_share: Share of host memory that an integrated GPU may take; None: what it reports.
        ram_max_usage: Share of the available host memory that this process's loaders may hold.
        sample_cache: Whether samples stay in host memory between epochs when streaming.
        disk_stage: Bytes (or ``"200GiB"``) of a file for samples that memory has no room for.
        disk_stage_dir: Its folder; None: the system's for temporary files.
        simulated: Memory and speed of the device ``"simulated"``.
        check_purity: Read eight samples of the first batch a second time, and refuse a source whose bytes differ then.
        on_error: What a sample that cannot be read does: ``"raise"``, or ``"skip"``: :attr:`skipped` names it then.
        max_skipped: With ``"skip"``, how many samples at most, over all ranks.
        seed: Run seed, ``0 <= seed < 2**64``.
        shuffle: A fresh order every epoch (as with None), or storage order.
        order: ``"uniform"``, ``"lanes"``, ``"blocked"``, ``"bucketed"`` or ``"weighted"``.
        augment: How often each sample comes in an epoch.
        num_lanes: Lanes of the lanes order; None: one for each row of a step over all ranks.
        block_samples: Samples of a block of the blocked order.
        pool_batches: Batches of a pool of the bucketed order.
        lengths: Length of each sample, for the bucketed order; None: the source says.
        weights: Weight of each sample, for the weighted order; or ``"inverse_frequency"`` of ``label_field``.
        label_field: See ``weights``.
        num_draws: Draws of an epoch of the weighted order; None: as many as samples.
        num_epochs: Epochs of the run, where they are known: what will never be asked for again is not kept.
        sampler: An iterable of sample indices, like torch's samplers, instead of ``shuffle`` and ``order``.
        batch_sampler: An iterable of lists of indices, each the batch of a step over all ranks, instead of
            ``batch_size``, ``shuffle``, ``order``, ``sampler`` and ``drop_last``.
        drop_last: ``True`` drops a last batch that is not full, ``False`` delivers it, ``"pad"`` fills and marks it.
        keep_digest: Sum a hash of every delivered row, see :attr:`Statistics.digest`.
        context: Rank and world size.

    Raises:
        LoaderError: if ``source`` is nothing that can be read.
        ConfigError: if a value is out of range, or an epoch would have no batch.
        StagingError: if ``mode="resident"`` cannot fit.
    """

    def __init__(
        self,
        source: object,
        *,
        batch_size: int | Omitted | None = OMITTED,
        global_batch_size: int | None = None,
        names: Sequence[str] | None = None,
        collate: str | Callable[..., Any] = "stack",
        ragged: bool | Sequence[str] | None = None,
        pure: bool = True,
        thread_safe: bool | None = None,
        pad_id: int = 0,
        pad_multiple: int = 8,
        pad_length: int | None = None,
        labels_from: str | None = None,
        transforms: Any = None,
        global_batch_on_resume: Literal["keep", "scale"] = "keep",
        device: str = "auto",
        mode: Literal["auto", "resident", "streaming"] = "auto",
        prefetch: Literal["auto"] | int = "auto",
        readers: Literal["auto"] | int = "auto",
        reader_kind: Literal["thread", "process"] = "thread",
        reader_start: Literal["forkserver", "spawn", "fork"] = "forkserver",
        vram_max_usage: float = 0.90,
        vram_pool: bool = True,
        activation_reserve: int | str | None = None,
        gpu_ram_share: float | None = None,
        ram_max_usage: float = 0.50,
        sample_cache: bool = True,
        disk_stage: int | str = 0,
        disk_stage_dir: str | None = None,
        simulated: SimulatedConfig | Mapping[str, Any] | None = None,
        check_purity: bool = True,
        on_error: Literal["raise", "skip"] = "raise",
        max_skipped: int = 100,
        seed: int = 42,
        shuffle: bool | None = None,
        order: OrderName = "uniform",
        augment: int = 1,
        num_lanes: int | None = None,
        block_samples: int = 65_536,
        pool_batches: int = 50,
        lengths: Any = None,
        weights: Any = None,
        label_field: str = "label",
        num_draws: int | None = None,
        num_epochs: int | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        drop_last: Literal[True, False, "pad"] | None = None,
        keep_digest: bool = False,
        context: RunContext | None = None,
    ) -> None:
        # Every keyword is a key of a section or one of its parts, under its own name.
        given = {
            **locals(),
            "names": list(names) if isinstance(names, tuple) else names,
            "simulated": SimulatedConfig() if simulated is None else simulated,
        }
        self._config, self._sampling, self._parts = split_arguments(**grouped(given, shared=(source,)))
        self._context = context or RunContext()
        self._parts = self._parts.among(self._context.world)
        self._source = as_source(
            source, ragged=ragged_fields(collate, batch_size, ragged), pure=pure, thread_safe=thread_safe
        )
        self._counters = Counters(
            self._source.spec.row_bytes, self._source.delivered.row_bytes, keep_digest=keep_digest
        )
        self._passes = Passes()
        self._closed = False
        self._iterator: weakref.ref[LoaderIterator] | None = None
        self._engine = self._build(first_global_batch(self._config, self._context))
        self._finalizer = weakref.finalize(self, self._engine.close)
        try:
            self._watch = Watch(self._context, self._engine.steps, self.device)
        except BaseException:
            self._finalizer()
            raise

    def _build(self, global_batch: int) -> Feed:
        return make_feed(
            self._source,
            self._config,
            self._sampling,
            self._parts,
            global_batch=global_batch,
            context=self._context,
            keep_digest=self._counters.digest is not None,
        )

    def _rebuild(self, global_batch: int) -> None:
        """Build another engine; the old one's memory goes first: the two need not fit side by side."""
        self._closed = True
        self._finalizer()
        before, parts = self._engine, self._parts
        try:
            world = self._context.world if before.is_own_process else None
            self._engine = built_by_all(world, lambda: self._build(global_batch), lambda engine: engine.close())
        except BaseException:
            self._parts = replace(parts, order_tag=before.stream.order_tag)
            self._engine = self._build(before.stream.global_batch)  # the loader stays what it was
            raise
        finally:
            self._engine.inherit(before)
            self._watch.follow(self._engine.steps)
            self._finalizer, self._closed = weakref.finalize(self, self._engine.close), False

    def __iter__(self) -> LoaderIterator:
        return self._start(self._passes.following(self._engine.is_end))

    def epoch(self, epoch: int) -> LoaderIterator:
        """Iterate one epoch: from the loaded cursor if it stands in this epoch, else from the epoch's start.

        Args:
            epoch: Epoch number, counted from 0.

        Raises:
            ValueError: if ``epoch`` is no integer from 0 to 2**64 - 1.
            ChangedError: if the source's files changed.
        """
        self.set_epoch(epoch)
        return iter(self)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass one over ``epoch``; a loaded cursor that stands in that epoch is kept.

        Raises:
            ValueError: if ``epoch`` is no integer from 0 to 2**64 - 1.
        """
        if not self._passes.name_epoch(epoch):
            self._end_iterator("set_epoch() was called while this iterator was in use; take a new one")

    def _start(self, spot: Spot) -> LoaderIterator:
        if self._closed:
            raise LoaderError("this loader was closed; build a new one")
        if not self._engine.is_own_process:
            # Threads did not follow the fork, and locks may have been held by them: build afresh.
            self._iterator = None
            self._rebuild(self._engine.stream.global_batch)
        why = "a second iterator over this loader ended this one; a loader has one live iterator, build two loaders"
        if self._end_iterator(why):
            _log.warning("%s", why)
        reading = self._engine.read(spot)
        self._passes.begin(spot)
        iterator = LoaderIterator(
            reading,
            self._engine.pool,
            self._engine.stream,
            seed=self._sampling.seed,
            has_repeats=self._engine.has_repeats,
            counters=self._counters,
            owner=self,
            on_step=self._passes.step_done,
            on_first=self._engine.start_resident,
            on_end=partial(_end, self._passes, self._engine),
            spot=spot,
            watch=self._watch if self._context.world_size > 1 or self._watch.delivered is not None else None,
        )
        self._iterator = weakref.ref(iterator)
        return iterator

    def state_dict(self) -> dict[str, int | str]:
        """Return the place after the last batch that was handed out, JSON-able, with fixed keys.

        It is the same on all ranks, but for lanes of a stream: any rank's state resumes at the same place, and reads
        other ranks' lanes again from their begin up to it. It lists what all ranks have skipped by now.

        Raises:
            SourceError: if the source cannot be fingerprinted, or ranks skip more than they may; who was told may save.
        """
        return self._watch.stream(self._engine.stream).cursor(self._passes.spot).state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved place, on all ranks. The saved global batch is kept, however many ranks there are now.

        Raises:
            ResumeError: if the state is none, or belongs to other data or another order; both sides are named.
        """
        cursor = Cursor.from_state(state)
        agree_on_place(self._context.world, cursor)
        stream = self._engine.stream
        continued = continue_from(
            cursor,
            stream,
            num_picks=self._engine.num_picks,
            rule=self._config.global_batch_on_resume,
            one_by_one=self._parts.passes_through,
            num_lanes=self._sampling.num_lanes,
        )
        if continued.global_batch != stream.global_batch:
            self._engine.require_global_batch(continued.global_batch)  # before anything is given up
        self._end_iterator("load_state_dict() was called while this iterator was in use; take a new one")
        if (continued.order_tag, continued.global_batch) != (stream.order_tag, stream.global_batch):
            self._parts = replace(self._parts, order_tag=continued.order_tag)
            self._rebuild(continued.global_batch)
        self._passes.load(self._engine.spot(cursor))
        self._watch.resume(cursor.shares)


def _end(passes: Passes, engine: Feed) -> None:
    passes.end()
    engine.pass_ended()
