"""The comparison of ``job=verify``: every combination must repeat the reference, step by step and row by row."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from flodl_pipe.arrays import Array
from flodl_pipe.batch.batch import Batch
from flodl_pipe.errors import FlodlPipeError
from flodl_pipe.jobs.verify_combinations import Combination, Leg, Setting, legs
from flodl_pipe.jobs.verify_difference import Difference, compare_rows, compare_values
from flodl_pipe.jobs.verify_ranks import Ranks, Refused, StoppedError
from flodl_pipe.jobs.verify_reference import Reference, required_batch
from flodl_pipe.jobs.verify_rows import Rows, assemble, rows_of
from flodl_pipe.jobs.verify_ways import Subject
from flodl_pipe.keyed.absorb import absorb
from flodl_pipe.keyed.digest import Digest
from flodl_pipe.loader.loader import Loader
from flodl_pipe.reports.figures import plural

__all__ = ["Checker", "DifferentError"]

_DOMAIN = 0x7E2FD
# What of a state need not be the same on all ranks: marks of lanes, how shares came about, samples met ahead that are
# skipped.
_OF_A_RANK = ("streams", "shares", "skipped")


@final
@dataclass
class Checker:
    """Runs combinations against a reference.

    Attributes:
        subject: The stream.
        reference: What each must repeat.
        possible: Settings to go on with, each with its place among all.
        seed: Of the choice of interruptions.
        num_legs: Legs that were run.
        num_close: Steps whose floating-point values differ within the tolerance.
        largest: The largest such difference.
        other_modes: Why a loader did not keep the mode it was asked for -> how often.
        served: Rows that each tier was asked for, and that it had, by its name.
        switched_off: Tiers that gave up, each with the reason -> how often.
    """

    subject: Subject
    reference: Reference
    possible: Sequence[tuple[int, Setting]]
    seed: int
    num_legs: int = 0
    num_close: int = 0
    largest: float = 0.0
    other_modes: dict[str, int] = field(default_factory=dict)
    served: dict[str, tuple[int, int]] = field(default_factory=dict)
    switched_off: dict[str, int] = field(default_factory=dict)

    def run(self, combination: Combination) -> Difference | None:
        """Run a combination and return the first difference, or None.

        Raises:
            Refused: if its first setting cannot be built now.
        """
        reference = self.reference
        plan = legs(combination, self.possible, len(reference.steps), reference.ends, self.seed)
        state: str | None = None
        total = Digest()
        for number, leg in enumerate(plan):
            at = [leg.start]
            try:
                state, digest = self._leg(combination, leg, number, state, at)
            except Refused:
                raise
            except DifferentError as different:
                found = different.difference
            except StoppedError as stopped:
                found = Difference(str(stopped))
            except Exception as error:  # noqa: BLE001 - whatever it is, the reference was read without it
                found = Difference(f"{type(error).__name__}: {error}", cause=error)
            else:
                total.merge(digest)
                continue
            return found.at(combination, leg.setting, number, leg.start, self._epoch(at[0]), at[0])
        if total.hex() == reference.digest.hex():
            return None
        last, steps = plan[-1], len(reference.steps)
        found = Difference(
            f"the batches are equal, and the digest of their stored rows is {total.hex()}, expected "
            f"{reference.digest.hex()}"
        )
        return found.at(combination, last.setting, len(plan) - 1, last.start, self._epoch(steps - 1), steps - 1)

    def notes(self) -> list[str]:
        """Return what should be known of the runs so far, apart from differences."""
        notes = [
            f"{count:,} loaders were in another mode than asked for: {why}" for why, count in self.other_modes.items()
        ]
        notes += [f"{why} (in {plural(count, 'loader')})" for why, count in self.switched_off.items()]
        idle = sorted(name for name, (rows, hits) in self.served.items() if rows and not hits)
        if idle:
            notes.append(
                f"the {' and the '.join(idle)} had none of the rows that were asked for: no sample comes twice in "
                "these steps; job.max_steps=null takes whole epochs"
            )
        if self.num_close:
            notes.append(
                f"floating-point values of {plural(self.num_close, 'step')} differ in their last digits, by "
                f"{self.largest:.1e} relative to 1 or the value at most, which is within the tolerance"
            )
        skipped = sorted({name for step in self.reference.steps for name in step.rows.skipped})
        if skipped:
            notes.append(f"not compared, because nested tensors have no rows of one size: field {', '.join(skipped)}")
        return notes

    def _epoch(self, step: int) -> int:
        steps = self.reference.steps
        return steps[min(step, len(steps) - 1)].epoch

    def _leg(
        self, combination: Combination, leg: Leg, number: int, state: str | None, at: list[int]
    ) -> tuple[str, Digest]:
        """Run one leg; return the state to go on from and the digest of its rows. ``at`` holds the step it is at."""
        try:
            ranks = Ranks(self.subject, leg.setting, state)
        except Refused:
            if not number:
                raise
            # Memory is short by now; the setting that it began with was built before.
            ranks = Ranks(self.subject, combination.setting, state)
        self.num_legs += 1
        with ranks:
            for step in range(leg.start, leg.stop):
                at[0] = step
                begins = self.reference.begins_epoch(step)
                self._step(step, ranks.next_step(begins_epoch=begins))
            digest, states = ranks.digest(), ranks.states()
            chosen = absorb(_DOMAIN, self.seed, combination.number, number) % len(states)
            self._states(states, leg.stop)
            if leg.stop == len(self.reference.steps) and self.reference.is_whole:
                ranks.require_end()
            ranks.require_ordered()
            for loader in ranks.loaders:
                self._count(loader, leg.setting)
        return json.dumps(states[chosen]), digest

    def _count(self, loader: Loader, setting: Setting) -> None:
        """Note how a loader served: whether as it was asked to, and what its tiers had."""
        mode, why = loader.mode
        if mode != setting.mode:
            self.other_modes[why] = self.other_modes.get(why, 0) + 1
        for tier in loader.tiers():
            rows, hits = self.served.get(tier.name, (0, 0))
            self.served[tier.name] = rows + tier.num_rows, hits + tier.num_hits
            if tier.off is not None:
                off = f"the {tier.name} gave up: {tier.off}"
                self.switched_off[off] = self.switched_off.get(off, 0) + 1

    def _step(self, step: int, batches: list[Batch]) -> None:
        wanted = self.reference.steps[step]
        parts = [rows_of(required_batch(batch)) for batch in batches]
        weights = [float(batch.weight) for batch in batches]
        rows, owners = assemble(parts, weights, len(wanted.rows))
        for rank, batch in enumerate(batches):
            if batch.pick_keys.epoch != wanted.epoch:
                raise DifferentError(
                    Difference(f"rank {rank} is in epoch {batch.pick_keys.epoch}, expected {wanted.epoch}")
                )
        if not rows.equal(wanted.rows):
            found = compare_rows(wanted.rows, rows, owners)
            if found is None:
                found = self._values(step, batches, rows, owners)
            if found is not None:
                raise DifferentError(found)
        self._weights(weights, parts, wanted.weight)
        place = [(cursor["epoch"], cursor["position"]) for cursor in (batch.cursor or {} for batch in batches)]
        if set(place) != {(wanted.epoch, wanted.next_position)}:
            raise DifferentError(
                Difference(
                    f"the ranks' cursors stand at (epoch, position) {place}, expected all at "
                    f"{(wanted.epoch, wanted.next_position)}"
                )
            )

    def _values(self, step: int, batches: list[Batch], rows: Rows, owners: list[int]) -> Difference | None:
        """Read the step of the reference again and compare values; None if they are equal within the tolerance."""
        reference, wanted = self.reference, self.reference.steps[step]
        try:
            with Ranks(self.subject, reference.setting, reference.states[step]) as one:
                (again,) = one.next_step(begins_epoch=False)
        except Refused as why:
            return Difference(
                f"the delivered values differ, and the reference cannot be read again to show them: {why}"
            )
        if not rows_of(again).equal(wanted.rows):
            return Difference(
                "the delivered values differ, and the reference itself is not the same when it is read again: the "
                "data or a transform is no function of the sample and its key"
            )
        found, largest = compare_values(again, batches, rows, wanted.rows, owners)
        if found is None:
            self.num_close += 1
            self.largest = max(self.largest, largest)
        return found

    def _weights(self, weights: list[float], parts: list[Rows], of_step: float) -> None:
        """Compare with the rule: an average over ranks of weight x mean of the valid rows is the mean over all rows.

        Of samples that are skipped, the others keep the part that they have without the fault: what the ranks have
        together is then below 1, as it is of the reference.
        """
        valid = np.array([part.valid.sum() for part in parts], dtype=np.float64)
        wanted: Array = of_step * valid * len(parts) / max(valid.sum(), 1.0)
        if not np.allclose(weights, wanted, rtol=1e-9, atol=1e-12):
            raise DifferentError(
                Difference(
                    f"the ranks have {valid.astype(int).tolist()} valid rows and weights {weights}, expected "
                    f"{wanted.tolist()}: with these an average over ranks is not the mean over the global batch"
                )
            )

    def _states(self, states: list[dict[str, object]], stop: int) -> None:
        """Compare the ranks' states with that of the reference."""
        wanted = json.loads(self.reference.states[stop])
        for rank, state in enumerate(states):
            different = [name for name in wanted if state.get(name) != wanted[name] and name not in _OF_A_RANK]
            if different or state.keys() != wanted.keys():
                name = different[0] if different else "its keys"
                raise DifferentError(
                    Difference(
                        f"rank {rank} saves another state: {name} is {state.get(name)!r}, expected {wanted.get(name)!r}"
                    )
                )


class DifferentError(FlodlPipeError):
    """Carries a difference out of a leg."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(difference.what)
        self.difference = difference
