"""The parts of ``job=verify``: the matrix, rows as numbers, comparisons, checks of data."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import ChangedError, SourceError
from flodl_pipe.jobs.verify_combinations import NUM_KILLS, WAYS, Combination, Setting, choice, legs
from flodl_pipe.jobs.verify_combinations import settings as settings_of
from flodl_pipe.jobs.verify_data import check_data, limits_of
from flodl_pipe.jobs.verify_difference import compare_rows, compare_values
from flodl_pipe.jobs.verify_rows import assemble, batch_sums, rows_of
from flodl_pipe.jobs.verify_values import Limits
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.sources.protocol import Fingerprint
from flodl_pipe.sources.ragged_source import RaggedRows

ALL = list(enumerate(settings_of(0)))


def batch(samples, *, valid=None, repeats=None, **fields):
    keys = PickKeys(np.array(samples), np.array(repeats or [0] * len(samples)), 0, 42)
    mask = None if valid is None else torch.tensor(valid)
    return Batch(tuple(fields), tuple(fields.values()), pick_keys=keys, valid=mask)


def test_the_matrix_has_every_way_readers_world_and_both_shares():
    found = Counter((s.way, s.readers, s.world_size, s.is_equal) for _, s in ALL)
    assert set(found.values()) == {1}
    assert len(found) == 7 * 3 * (5 + 4)


def test_a_choice_has_every_combination_once_and_every_setting_early():
    found = list(choice(ALL, 0))
    assert sorted(combination.number for combination in found) == list(range(len(ALL) * NUM_KILLS))
    assert len({combination.setting for combination in found[: len(ALL)]}) == len(ALL)
    assert found != list(choice(ALL, 1))
    assert list(choice([], 0)) == []


def test_the_ways_take_turns_in_a_choice():
    found = [combination.setting for combination in choice(ALL, 3)]
    for first in range(0, len(ALL), len(WAYS)):
        assert {setting.way for setting in found[first : first + len(WAYS)]} == set(WAYS)
    some = [(number, setting) for number, setting in ALL if setting.way != "device" or setting.world_size == 1]
    assert {setting.way for setting in [c.setting for c in choice(some, 0)][:7]} == set(WAYS)
    assert len({(setting.readers, setting.world_size) for setting in found[:40]}) > 10


@settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 3779), st.integers(1, 70), st.integers(0, 2**64 - 1))
def test_legs_follow_each_other_from_the_first_step_to_the_last(number, num_steps, seed):
    setting = ALL[number // NUM_KILLS][1]
    found = legs(
        Combination(number, setting, number % NUM_KILLS), ALL, num_steps, [num_steps // 2] * (num_steps > 2), seed
    )
    assert found[0].setting == setting
    assert found[0].start == 0
    assert found[-1].stop == num_steps
    assert 2 <= len(found) <= 4
    assert all(one.stop == two.start for one, two in itertools.pairwise(found))
    assert found[-1].start < num_steps


def test_kills_are_at_the_ends_anywhere_and_often_go_on_otherwise():
    found = [legs(c, ALL, 30, [15], 0) for c in choice(ALL, 0)]
    kills = Counter(leg.start for plan in found for leg in plan[1:])
    assert set(kills) == set(range(30))
    for corner in (0, 1, 14, 15, 16, 29):
        assert kills[corner] > len(ALL)
    assert {len(plan) for plan in found} == {2, 3, 4}
    changed = sum(plan[1].setting != plan[0].setting for plan in found)
    assert 0.5 < changed / len(found) < 0.9


def test_rows_are_the_same_however_they_are_cut():
    pictures = torch.arange(24, dtype=torch.uint8).reshape(4, 2, 3)
    labels = torch.tensor([3, 1, 2, 0])
    whole = rows_of(batch([5, 6, 7, 8], image=pictures, label=labels))
    parts = [
        rows_of(batch([5], image=pictures[:1], label=labels[:1])),
        rows_of(batch([6, 7, 8], image=pictures[1:], label=labels[1:])),
    ]
    together, owners = assemble(parts, [0.5, 1.5], 4)
    assert together.equal(whole)
    assert owners == [0, 1, 1, 1]
    assert len({tuple(row) for row in whole.hashes.tolist()}) == 4


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float32, torch.bfloat16])
def test_one_changed_value_changes_its_row_and_field_only(dtype):
    values = torch.ones(3, 5).to(dtype)
    other = values.clone()
    other[1, 4] = 0
    one, two = (rows_of(batch([1, 2, 3], a=field, b=values)) for field in (values, other))
    assert (one.hashes != two.hashes).tolist() == [[False, False], [True, False], [False, False]]
    assert not one.equal(two)


def test_how_wide_a_batch_was_padded_does_not_count():
    def padded(width, fill):
        ids = torch.full((2, width), fill)
        mask = torch.zeros(2, width, dtype=torch.int64)
        ids[0, :3], mask[0, :3] = torch.tensor([4, 5, 6]), 1
        ids[1, :1], mask[1, :1] = torch.tensor([0]), 1
        return rows_of(batch([1, 2], input=ids, attention_mask=mask))

    assert padded(3, 9).equal(padded(8, 0))
    assert padded(3, 9).equal(padded(3, 7))


def test_nested_fields_are_left_out_and_named():
    rows = rows_of(
        batch(
            [1, 2], x=torch.ones(2), ids=torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
        )
    )
    assert rows.skipped == ("ids",)


def test_what_fills_the_place_of_an_invalid_row_does_not_count():
    one, two = (rows_of(batch([1, 2], x=torch.tensor([1.0, value]), valid=[True, False])) for value in (2.0, 3.0))
    assert one.equal(two)
    assert not one.equal(rows_of(batch([1, 2], x=torch.tensor([1.0, 2.0]))))


def test_a_rank_with_an_empty_share_is_left_out():
    parts = [rows_of(batch([1], x=torch.ones(1))), rows_of(batch([1], x=torch.ones(1), valid=[False]))]
    together, owners = assemble(parts, [2.0, 0.0], 1)
    assert together.samples.tolist() == [1]
    assert owners == [0]
    # Padding is part of the step.
    together, _ = assemble(parts, [2.0, 0.0], 2)
    assert together.valid.tolist() == [True, False]


def test_the_sum_of_a_step_sees_everything():
    def total(**changes):
        shape = {"samples": [1, 2], "x": torch.tensor([1.0, 2.0]), **changes}
        place = {"epoch": shape.pop("epoch", 0), "position": shape.pop("position", 0)}
        return tuple(batch_sums(rows_of(batch(shape.pop("samples"), **shape)), **place).tolist())

    changed = [
        total(), total(samples=[2, 1]), total(x=torch.tensor([1.0, 3.0])), total(valid=[True, False]),
        total(repeats=[0, 1]), total(epoch=1), total(position=2),
    ]  # fmt: skip
    assert len(set(changed)) == len(changed)


def test_the_first_row_that_differs_is_named_with_its_rank():
    wanted = rows_of(batch([4, 5, 6], x=torch.ones(3)))
    other = rows_of(batch([4, 6, 5], x=torch.ones(3), repeats=[0, 2, 0]))
    found = compare_rows(wanted, other, [0, 1, 1])
    assert found.what == (
        "row 1 of the global batch (rank 1, its row 0): got sample 6 repeat 2, expected sample 5 repeat 0"
    )
    assert "2 rows together, expected 3" in compare_rows(wanted, rows_of(batch([4, 5], x=torch.ones(2))), [0, 0]).what
    assert "has fields y, expected x" in compare_rows(wanted, rows_of(batch([4, 5, 6], y=torch.ones(3))), [0] * 3).what
    assert compare_rows(wanted, wanted, [0, 0, 0]) is None


def values(one, other):
    wanted, found = batch([1, 2], x=one), batch([1, 2], x=other)
    return compare_values(wanted, [found], rows_of(found), rows_of(wanted), [0, 0])


def test_values_are_compared_byte_by_byte_or_within_the_tolerance():
    found, _ = values(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 260]]))
    assert found.what.endswith("field 'x': byte 9 of 16 is the first to differ: got 0x01, expected 0x00")
    found, largest = values(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 2e-6]))
    assert found is None
    assert 0 < largest < 1e-5
    assert values(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.001]))[0] is not None
    assert values(torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")]))[0] is not None
    assert "float64" in values(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0], dtype=torch.float64))[0].what


class Labels:
    """Ten labels, some of which may be wrong."""

    spec = delivered = SampleSpec.of(label=("int64", ()))
    thread_safe = True

    def __init__(self, labels, fingerprints=("a", "a")):
        self.labels, self.fingerprints = np.array(labels), list(fingerprints)

    def __len__(self):
        return len(self.labels)

    def read_into(self, indices, rows, out):
        out["label"][rows] = self.labels[indices]

    def deliver(self, stored, out):
        out["label"][...] = stored["label"]

    def fingerprint(self, *, full=False):
        return Fingerprint("labels", self.fingerprints.pop(0), full)


def checks(source, limits=None, *, skips=False):
    found = check_data(source, limits or Limits(num_classes=10), read_all=True, deadline_s=None, seed=0, skips=skips)
    return {check.name: check for check in found}


def test_labels_within_their_classes_pass():
    found = checks(Labels(range(10)))
    assert not any(check.failed for check in found.values())
    assert found["values"].found == "10 samples read, 80 B; labels are within 0 .. 9"
    assert "twice the same, over every byte" in found["fingerprint"].found


@pytest.mark.parametrize("wrong", [-1, 10])
def test_a_label_outside_its_classes_is_named(wrong):
    found = checks(Labels([0, 1, wrong]))["values"]
    assert found.failed
    assert found.found == f"sample 2: field 'label' holds {wrong}, and it must be within 0 .. 9"


def test_an_id_of_a_ragged_sample_is_named_by_its_sample():
    ids = Ragged(values=np.array([0, 4, 2, 9, 1]), offsets=np.array([0, 1, 3, 3, 5]))
    source = RaggedRows({"input_ids": ids, "label": np.array([0, 1, 1, 0])})
    found = checks(source, Limits(num_ids=10, num_classes=2))
    assert not any(check.failed for check in found.values())
    assert found["values"].found.endswith("ids are within 0 .. 9, labels are within 0 .. 1")
    found = checks(source, Limits(num_ids=9))["values"]
    assert found.found == "sample 3: field 'input_ids' holds 9, and it must be within 0 .. 8"


def test_a_sample_that_cannot_be_read_is_a_fault_unless_it_is_skipped():
    class Torn(Labels):
        def read_into(self, indices, rows, out):
            if 3 in indices:
                raise SourceError("labels.bin, byte 24: torn")
            super().read_into(indices, rows, out)

    found = checks(Torn(range(10)))
    assert found["purity"].failed
    assert found["values"].found == "labels.bin, byte 24: torn"


class Damaged(Labels):
    """Some samples cannot be read."""

    def __init__(self, labels, bad):
        super().__init__(labels)
        self.bad = bad

    def read_into(self, indices, rows, out):
        if np.isin(indices, self.bad).any():
            raise OSError(f"sample {indices[0]} is cut off")
        super().read_into(indices, rows, out)


def test_what_is_skipped_is_left_out_and_counted_and_everything_else_is_looked_at():
    found = checks(Damaged(range(10), [3, 7]), skips=True)
    assert not any(check.failed for check in found.values())
    told = "2 samples cannot be read and are skipped (source.on_error=skip), the first is sample 3: OSError: sample 3"
    assert found["values"].found == f"8 samples read, 64 B; labels are within 0 .. 9; {told} is cut off"
    assert found["purity"].found == f"8 samples are the same when read again; {told} is cut off"


def test_a_label_outside_its_classes_is_found_behind_a_sample_that_is_skipped():
    labels = np.zeros(9000, np.int64)
    labels[8000] = 11
    found = checks(Damaged(labels, [0, 1, 4100]), skips=True)["values"]
    assert found.failed
    assert found.found == "sample 8000: field 'label' holds 11, and it must be within 0 .. 9"


def test_a_source_that_changes_is_found_though_samples_are_skipped():
    class Random(Damaged):
        def read_into(self, indices, rows, out):
            super().read_into(indices, rows, out)
            self.labels = self.labels[::-1] if 1 in indices else self.labels

    found = checks(Random(range(10), [3]), skips=True)["purity"]
    assert found.failed
    assert "is not the same when it is read again" in found.found


def test_where_nothing_can_be_read_that_is_told():
    found = checks(Damaged(range(4), range(4)), skips=True)
    assert found["purity"].found.startswith("not looked at; 4 samples cannot be read and are skipped")
    assert found["values"].found.startswith("0 samples read, 0 B; 4 samples cannot be read")


def test_ragged_samples_that_are_skipped_are_left_out():
    class Torn(RaggedRows):
        def read_rows(self, indices):
            if 1 in indices:
                raise OSError("torn")
            return super().read_rows(indices)

    ids = Ragged(values=np.array([0, 4, 2, 9, 1]), offsets=np.array([0, 1, 3, 3, 5]))
    found = checks(Torn({"input_ids": ids}), Limits(num_ids=10), skips=True)
    assert not any(check.failed for check in found.values())
    assert found["values"].found.startswith("3 samples read")
    assert "; 1 sample cannot be read and is skipped" in found["values"].found
    found = checks(Torn({"input_ids": ids}), Limits(num_ids=9), skips=True)["values"]
    assert found.found == "sample 3: field 'input_ids' holds 9, and it must be within 0 .. 8"


def test_a_file_that_changed_is_a_fault_also_where_samples_are_skipped():
    class Changed(Labels):
        def read_into(self, indices, rows, out):
            raise ChangedError("labels.bin is not the file that was opened")

    found = checks(Changed(range(4)), skips=True)
    assert found["values"].failed
    assert found["purity"].failed


def test_a_fingerprint_that_changes_is_found():
    found = checks(Labels([1], fingerprints="ab"))["fingerprint"]
    assert found.failed
    assert "as labels [a] and as labels [b]" in found.found


def test_no_time_to_read_everything_is_told():
    found = list(check_data(Labels(range(9000)), Limits(), read_all=True, deadline_s=0.0, seed=0))
    assert "4,096 samples of 9,000, no time for more (job.max_s) read" in found[-1].found


def test_a_mixture_is_held_to_what_all_its_parts_state():
    from flodl_pipe.config.compose import load_config

    assert limits_of(load_config("mixture").source) == Limits()
    sizes = [f"+source.parts.{part}.source.vocab_size={size}" for part, size in (("common", 300), ("rare", 400))]
    assert limits_of(load_config("mixture", *sizes).source).num_ids == 400
    assert limits_of(load_config("mixture", sizes[0]).source).num_ids is None
    assert limits_of(load_config("cifar10").source).num_classes == 10


def test_a_setting_is_told_in_words():
    assert str(Setting("resident", 4, (1, 1))) == "way=resident readers=4 world=2"
    assert str(Setting("device pool", 0, (3, 1))) == "way=device pool readers=0 world=2 shares=3:1"
