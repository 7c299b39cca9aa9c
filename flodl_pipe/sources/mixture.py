"""A mixture: several sources of one layout as one, and the proportions in which they are to be read.

The samples of the parts follow each other in one joined index space; which of them stands where in an epoch is the
order's business, which the mixture describes (:class:`flodl_pipe.sources.ordering.Mixed`) and the loader makes. A read
is one call per part that occurs in it.

Where all parts are known to deliver alike (:mod:`flodl_pipe.sources.delivery`), the mixture delivers as the first one
does. Otherwise every stored row carries the number of its part in one more field, and each part delivers its own rows:
records of equal size whose fields lie at other offsets have equal layouts and still mean different things.

Shape letters: ``K`` samples asked for, ``P`` parts.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.config.proportions import quotas
from flodl_pipe.errors import ConfigError, SourceError
from flodl_pipe.sources.delivery import deliver_alike, delivery_of
from flodl_pipe.sources.joined_extents import join_extents
from flodl_pipe.sources.ordering import Drawn, Mixed, MixedPart, Ordering, Weights
from flodl_pipe.sources.protocol import BundledSource, Fact, Fingerprint, HasArtifacts, Source, is_dear
from flodl_pipe.units import format_count

__all__ = ["PART_FIELD", "Mixture"]

PART_FIELD = "mixture_part"
"""Stored field that holds the number of a row's part, uint16; not delivered."""


@final
class Mixture:
    """Several sources as one; a :class:`flodl_pipe.sources.protocol.BundledSource`, whatever the parts are.

    Args:
        parts: Sources by name, of one layout; no mixtures and no streams.
        schedule: Weights over the run, one per part in their order, ascending, the first at 0.
        block: Positions within which the proportions are exact.
        num_picks: Positions of an epoch, a multiple of ``block``; None: as many as the parts have samples (or draws)
            together, in whole blocks, at least one.
        max_epochs: By name: how often a part may be gone through in the whole run.

    Raises:
        ConfigError: if parts differ in layout, are mixtures, or weights do not fit them.
        SourceError: if a part has no sample.
    """

    def __init__(
        self,
        parts: Mapping[str, Source],
        schedule: Sequence[Weights],
        *,
        block: int,
        num_picks: int | None = None,
        max_epochs: Mapping[str, int] | None = None,
    ) -> None:
        orderings = _check(parts, schedule, block)
        limits = max_epochs or {}
        self._parts = dict(parts)
        self._sources = tuple(parts.values())
        sizes = [len(part) for part in self._sources]
        self._ends: IndexArray = np.cumsum(sizes, dtype=np.int64)
        draws = sum(
            ordering.num_picks if isinstance(ordering, Drawn) else size
            for ordering, size in zip(orderings, sizes, strict=True)
        )
        self._mixed = Mixed(
            parts=tuple(
                MixedPart(name, size, isinstance(ordering, Drawn), limits.get(name))
                for name, size, ordering in zip(parts, sizes, orderings, strict=True)
            ),
            schedule=tuple(schedule),
            block=block,
            num_picks=max(draws // block, 1) * block if num_picks is None else num_picks,
        )
        bundled = {name: part for name, part in parts.items() if isinstance(part, BundledSource)}
        self._bundled = bundled
        self._alike = deliver_alike(self._sources)
        first = self._sources[0]
        self.spec = first.spec if self._alike else SampleSpec((*first.spec, Field(PART_FIELD, "uint16")))
        self.delivered = first.delivered
        self.delivery: object = delivery_of(first) if self._alike else None
        self.thread_safe = all(part.thread_safe for part in self._sources)
        self.is_dear = any(map(is_dear, self._sources))
        self.ordering: Ordering = self._mixed
        off = [f"part {name}: {part.tiers_off}" for name, part in bundled.items() if part.tiers_off is not None]
        self.tiers_off: str | None = "; ".join(off) or None
        self.held_bytes = sum(part.held_bytes for part in bundled.values())
        self.extents = join_extents(self._sources) if self._alike else None

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Read samples into rows of ``out``; see :meth:`flodl_pipe.sources.protocol.Source.read_into`."""
        if not len(indices):
            return
        if int(indices.view(np.uint64).max()) >= len(self):  # a negative number, seen as unsigned, is a huge one
            raise IndexError(f"samples {indices.min()} .. {indices.max()} are not all in 0 .. {len(self) - 1}")
        numbers: IndexArray = np.searchsorted(self._ends, indices, side="right")
        if not self._alike:
            out[PART_FIELD][rows] = numbers
            out = {name: array for name, array in out.items() if name != PART_FIELD}
        for number in np.flatnonzero(np.bincount(numbers, minlength=len(self._sources))).tolist():
            here = np.flatnonzero(numbers == number)
            source = self._sources[number]
            source.read_into(indices[here] - (int(self._ends[number]) - len(source)), rows[here], out)

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Deliver each row as its part does; see :meth:`flodl_pipe.sources.protocol.Source.deliver`."""
        if self._alike:
            self._sources[0].deliver(stored, out)
            return
        numbers = stored[PART_FIELD]
        stored = {name: array for name, array in stored.items() if name != PART_FIELD}
        for number in np.unique(numbers).tolist():
            here = numbers == number
            if here.all():
                self._sources[number].deliver(stored, out)
                return
            found = self.delivered.empty(int(np.count_nonzero(here)))
            self._sources[number].deliver({name: array[here] for name, array in stored.items()}, found)
            for name, array in found.items():
                out[name][here] = array

    def buffers(self, num_rows: int) -> dict[str, Array]:
        """Return rows for :meth:`read_into`; see :meth:`flodl_pipe.sources.protocol.BundledSource.buffers`."""
        first = self._sources[0]
        rows = first.buffers(num_rows) if isinstance(first, BundledSource) else first.spec.empty(num_rows)
        return {field.name: rows[field.name] if field.name in rows else field.empty(num_rows) for field in self.spec}

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        """Return the identity of names and parts. Weights are no part of it: the history of a run holds them."""
        found = {name: part.fingerprint(full=full) for name, part in self._parts.items()}
        content = "|".join(f"{name}={part.digest}" for name, part in found.items())
        digest = hashlib.blake2b(f"mixture/1|{content}".encode(), digest_size=16).hexdigest()
        summary = "; ".join(f"{name} ({part.summary})" for name, part in found.items())
        return Fingerprint(f"mixture of {len(found)}: {summary}", digest, full)

    def check_unchanged(self) -> None:
        """Compare the files of all parts with what they were."""
        for part in self._bundled.values():
            part.check_unchanged()

    def facts(self) -> tuple[Fact, ...]:
        """Return what ``plan`` tells: samples and share of each part, changes of the weights, and what parts say."""
        mixed = self._mixed
        facts = [
            Fact("parts", f"{len(self._parts)} in blocks of {format_count(mixed.block)}: {', '.join(self._parts)}"),
            *(Fact(f"part {name}", self._share(number)) for number, name in enumerate(self._parts)),
        ]
        for change in mixed.schedule[1:]:
            at = -(-change.at // mixed.block) * mixed.block
            places = zip(self._parts, quotas(mixed.block, change.weights), strict=True)
            facts.append(
                Fact(
                    f"from sample {format_count(at)} on",
                    f"{', '.join(f'{name} {format_count(count)}' for name, count in places)} of a block",
                )
            )
        if not self._alike:
            facts.append(Fact("delivery", "each part's rows by the part itself: they may not be delivered alike"))
        for name, part in self._bundled.items():
            facts.extend(Fact(f"{name}: {fact.name}", fact.value) for fact in part.facts())
        return tuple(facts)

    def artifacts(self) -> Mapping[str, str]:
        """Return what the parts keep beside a run; see :class:`flodl_pipe.sources.protocol.HasArtifacts`."""
        kept: dict[str, str] = {}
        for part in self._sources:
            kept |= _artifacts(part)
        return kept

    def close(self) -> None:
        """Close the files of all parts; a later read opens them again."""
        for part in self._bundled.values():
            part.close()

    def _share(self, number: int) -> str:
        part, mixed = self._mixed.parts[number], self._mixed
        count = quotas(mixed.block, mixed.schedule[0].weights)[number]
        passes = count * (mixed.num_picks // mixed.block) / part.num_samples
        how = "draws for each of them" if part.drawn else "passes over them"
        limit = f", {part.max_epochs} at most in the run" if part.max_epochs is not None else ""
        return (
            f"{format_count(part.num_samples)} samples; {format_count(count)} of a block ({count / mixed.block:.2%}), "
            f"weight {mixed.schedule[0].weights[number]}; {passes:.3g} {how} an epoch{limit}"
        )


def _check(parts: Mapping[str, Source], schedule: Sequence[Weights], block: int) -> list[Ordering]:
    """Refuse parts that cannot be mixed, and return how each is ordered by itself."""
    if not parts or block < 1:
        raise ConfigError.at("source.parts", f"needs parts and a block of at least 1, got {len(parts)} and {block}")
    orderings: list[Ordering] = []
    (name, first), *others = parts.items()
    for other_name, other in others:
        _require_alike(name, first, other_name, other)
    _require_one_meaning(parts)
    for part_name, part in parts.items():
        if not len(part):
            raise SourceError(f"part '{part_name}' of the mixture has 0 samples; leave it out, or give it data")
        if part.spec.is_ragged:
            raise ConfigError.at(
                f"source.parts.{part_name}.source",
                f"has samples of different lengths ({part.spec}), and the parts of a mixture have one size; pad them "
                "in the dataset, or cut them into windows of one length",
            )
        ordering = part.ordering if isinstance(part, BundledSource) else None
        if isinstance(ordering, Mixed):
            raise ConfigError.at(
                f"source.parts.{part_name}.source",
                "a mixture cannot be part of a mixture; list its parts here, with their weights multiplied out",
            )
        orderings.append(ordering)
    if not schedule or schedule[0].at != 0 or any(len(entry.weights) != len(parts) for entry in schedule):
        raise ConfigError.at("source.schedule", f"needs weights from 0 on, one for each of the {len(parts)} parts")
    return orderings


def _require_alike(name: str, first: Source, other_name: str, other: Source) -> None:
    for what, spec, other_spec in (
        ("stores", first.spec, other.spec),
        ("delivers", first.delivered, other.delivered),
    ):
        if spec == other_spec:
            continue
        types_only = [(f.name, f.shape) for f in spec] == [(f.name, f.shape) for f in other_spec]
        remedy = (
            "rows are not widened on the way: write one of them again in the other's type"
            if types_only
            else "give both the same fields and shapes (for tokens: seq_len and tail)"
        )
        raise ConfigError.at(
            f"source.parts.{other_name}.source",
            f"parts of a mixture must have one layout, but '{name}' {what} {spec}, and '{other_name}' {what} "
            f"{other_spec}; {remedy}",
        )


def _artifacts(source: Source) -> Mapping[str, str]:
    return source.artifacts() if isinstance(source, HasArtifacts) else {}


def _require_one_meaning(parts: Mapping[str, Source]) -> None:
    """Refuse parts whose rows look alike and mean different things, as ids of two vocabularies do."""
    owners: dict[str, tuple[str, str]] = {}
    for name, part in parts.items():
        for file, text in _artifacts(part).items():
            owner, other = owners.setdefault(file, (name, text))
            if text != other:
                raise ConfigError.at(
                    f"source.parts.{name}.source",
                    f"the {file} of '{name}' is not that of '{owner}', so equal numbers mean different things in "
                    "them; give both the same, for text by listing all files in the path of each and choosing with "
                    "subset",
                )
