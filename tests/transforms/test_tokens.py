"""Token transforms: the rule of each, the same ids in any split of the rows, and fields that do not fit."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import ConfigError, TransformError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.protocol import BundledTransform
from flodl_pipe.transforms.tokens import MaskTokens, RandomSpan, Shift

VOCAB = 1000
MASK = 103


def keys(num_rows, first=0, epoch=0, seed=42):
    sample = np.arange(first, first + num_rows)
    return PickKeys(sample, np.zeros_like(sample), epoch, seed).of_stream(7)


def batch_of(row_keys, **fields):
    return Batch(tuple(fields), tuple(torch.as_tensor(value) for value in fields.values()), pick_keys=row_keys)


def tokens(num_rows, length, dtype=np.int64, seed=0):
    return np.random.default_rng(seed).integers(0, VOCAB, (num_rows, length)).astype(dtype)


def ran(transform, row_keys, **fields):
    return transform(batch_of(row_keys, **fields), row_keys)


def near(count, total, share):
    """Whether a count of independent draws is what a share of them would give, within 5 standard deviations."""
    return abs(count - total * share) <= 5 * (total * share * (1 - share)) ** 0.5


MASKING = MaskTokens(mask_id=MASK, vocab_size=VOCAB)
SPAN = RandomSpan(length=24)
ALL = [MASKING, SPAN, Shift()]


def test_all_are_bundled_row_transforms_with_tags_of_their_own():
    assert all(isinstance(transform, BundledTransform) and transform.scope == "row" for transform in ALL)
    assert len({transform.tag for transform in ALL}) == 3


@pytest.mark.parametrize("transform", ALL, ids=["mask", "span", "shift"])
@pytest.mark.parametrize("cuts", [(), (1,), (16,), (3, 4, 11, 30)])
def test_a_row_becomes_the_same_in_any_split_of_the_rows(transform, cuts):
    ids, row_keys = tokens(32, 40), keys(32)
    whole = ran(transform, row_keys, input=ids, target=ids + 1)
    bounds = [0, *cuts, 32]
    for start, stop in pairwise(bounds):
        rows = slice(start, stop)
        part = ran(transform, row_keys.rows(rows), input=ids[rows], target=ids[rows] + 1)
        assert part.names == whole.names
        for name, tensor in part.items():
            assert torch.equal(tensor, whole[name][rows])


@pytest.mark.parametrize("transform", [MASKING, SPAN], ids=["mask", "span"])
def test_another_pick_epoch_seed_or_stream_is_drawn_anew(transform):
    ids = np.tile(np.arange(40), (16, 1))
    whole = ran(transform, keys(16), input=ids, target=ids)
    again = ran(transform, keys(16), input=ids, target=ids)
    assert torch.equal(whole["input"], again["input"])
    for other in (keys(16, first=100), keys(16, epoch=1), keys(16, seed=43), keys(16).of_stream(8)):
        assert not torch.equal(whole["input"], ran(transform, other, input=ids, target=ids)["input"])


@pytest.mark.parametrize("transform", ALL, ids=["mask", "span", "shift"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
def test_what_it_says_beforehand_is_what_it_makes(transform, dtype):
    spec = SampleSpec.of(input=(dtype, (40,)), label=("float32", ()), target=("int64", (40,)))
    made = ran(
        transform, keys(3), input=tokens(3, 40).astype(dtype), label=np.zeros(3, np.float32), target=tokens(3, 40)
    )
    said = transform.output(spec)
    assert made.names == said.names
    for field in said:
        assert (str(made[field.name].dtype), tuple(made[field.name].shape)) == (
            f"torch.{field.dtype}",
            (3, *field.shape),
        )


@pytest.mark.parametrize("transform", [MASKING, Shift()], ids=["mask", "shift"])
def test_a_target_that_was_not_there_comes_last(transform):
    spec = SampleSpec.of(input=("int64", (40,)), label=("int64", ()))
    assert transform.output(spec).names == ("input", "label", "target")
    made = ran(transform, keys(2), input=tokens(2, 40), label=np.arange(2))
    assert made.names == ("input", "label", "target")
    assert made["input"].untyped_storage().data_ptr() != made["target"].untyped_storage().data_ptr()


# --- mask_tokens -----------------------------------------------------------------------------------------------------


def test_a_token_is_chosen_masked_replaced_and_kept_with_the_stated_probabilities():
    # No id of the rows is the mask, and a random id is the token itself once in VOCAB.
    ids = np.full((500, 800), 7)
    made = ran(MASKING, keys(500), input=ids)
    chosen = made["target"] != -100
    num_chosen = int(chosen.sum())
    assert near(num_chosen, ids.size, 0.15)
    assert (made["target"][chosen] == 7).all()
    assert (made["input"][~chosen] == 7).all()
    found = made["input"][chosen]
    assert near(int((found == MASK).sum()), num_chosen, 0.8 + 0.1 / VOCAB)
    assert near(int((found == 7).sum()), num_chosen, 0.1 + 0.1 / VOCAB)
    others = found[(found != MASK) & (found != 7)]
    counts = np.bincount(others.numpy(), minlength=VOCAB)
    expected = len(others) / (VOCAB - 2)
    chi = ((np.delete(counts, [7, MASK]) - expected) ** 2 / expected).sum()
    assert abs(chi - (VOCAB - 3)) < 5 * (2 * VOCAB) ** 0.5


def test_choices_of_neighbours_and_of_rows_are_independent():
    chosen = (ran(MASKING, keys(500), input=np.full((500, 800), 7))["target"] != -100).numpy()
    for both in (chosen[:, 1:] & chosen[:, :-1], chosen[1:] & chosen[:-1]):
        assert near(int(both.sum()), both.size, 0.15**2)
    per_place = chosen.sum(0)
    assert ((per_place - 75) ** 2 / (500 * 0.15 * 0.85)).sum() == pytest.approx(800, abs=5 * (2 * 800) ** 0.5)


@pytest.mark.parametrize(("probability", "share"), [(0.0, 0), (1.0, 1)])
def test_the_ends_of_probability_are_exact(probability, share):
    transform = MaskTokens(mask_id=MASK, vocab_size=VOCAB, probability=probability, random=0.0, keep=0.0)
    made = ran(transform, keys(20), input=np.full((20, 999), 7))
    assert (made["target"] != -100).sum() == share * 20 * 999
    assert (made["input"] == MASK).sum() == share * 20 * 999


def test_all_chosen_may_be_kept_or_all_be_random():
    kept = ran(MaskTokens(mask_id=0, vocab_size=9, random=0.0, keep=1.0), keys(9), input=np.full((9, 99), 7))
    assert (kept["input"] == 7).all()
    assert (kept["target"] == 7).any()
    drawn = ran(
        MaskTokens(mask_id=0, vocab_size=9, probability=1.0, random=1.0, keep=0.0), keys(9), input=np.full((9, 99), 7)
    )
    assert set(drawn["input"].unique().tolist()) == set(range(9))


def test_ids_that_are_ignored_are_never_chosen_nor_changed():
    ids = tokens(50, 200)
    ids[:, ::5] = -1
    transform = MaskTokens(mask_id=MASK, vocab_size=VOCAB, probability=1.0, ignore=[500, 7, 7], ignore_below=5)
    made = ran(transform, keys(50), input=ids)
    ignored = torch.from_numpy((ids < 5) | np.isin(ids, [7, 500]))
    assert torch.equal(made["target"] == -100, ignored)
    assert torch.equal(made["input"][ignored], torch.from_numpy(ids)[ignored])
    assert "ignore=[7, 500], ignore_below=5" in transform.tag


def test_negative_ids_are_no_tokens():
    made = ran(MaskTokens(mask_id=MASK, vocab_size=VOCAB, probability=1.0), keys(1), input=[[-100, 3]])
    assert made["target"].tolist() == [[-100, 3]]


def test_padding_a_row_further_leaves_what_happened_to_its_tokens():
    ids = tokens(8, 50)
    padded = np.pad(ids, ((0, 0), (0, 14)))
    short, long = (ran(MASKING, keys(8), input=rows) for rows in (ids, padded))
    assert torch.equal(long["input"][:, :50], short["input"])
    assert torch.equal(long["target"][:, :50], short["target"])


def test_rows_of_different_lengths_are_masked_like_padded_ones():
    lengths = [5, 0, 12, 9]
    ids = tokens(4, 12)
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    flat = torch.from_numpy(np.concatenate([row[:length] for row, length in zip(ids, lengths, strict=True)]))
    ragged = ran(MASKING, keys(4), input=torch.nested.nested_tensor_from_jagged(flat, offsets))
    dense = ran(MASKING, keys(4), input=ids)
    for name in ("input", "target"):
        assert ragged[name].shape[0] == 4
        for row, (found, length) in enumerate(zip(ragged[name].unbind(), lengths, strict=True)):
            assert torch.equal(found, dense[name][row, :length])
    spec = SampleSpec((Field("input", "uint16", is_ragged=True),))
    assert [(field.dtype, field.is_ragged) for field in MASKING.output(spec)] == [("int64", True)] * 2


def test_rows_without_tokens_stay_empty():
    made = ran(MASKING, keys(3), input=np.zeros((3, 0), np.int64))
    assert made["input"].shape == made["target"].shape == (3, 0)


def test_other_fields_may_be_named():
    transform = MaskTokens(mask_id=MASK, vocab_size=VOCAB, field="ids", target="labels")
    assert ran(transform, keys(2), ids=tokens(2, 8)).names == ("ids", "labels")


def test_the_batch_that_came_in_is_unharmed():
    ids = torch.from_numpy(tokens(4, 64))
    before = ids.clone()
    ran(MASKING, keys(4), input=ids)
    assert torch.equal(ids, before)


# --- random_span -----------------------------------------------------------------------------------------------------


def test_a_span_is_consecutive_and_begins_anywhere_with_equal_probability():
    places = np.tile(np.arange(33), (9000, 1))
    made = ran(RandomSpan(length=24), keys(9000), input=places, target=places + 1)
    assert torch.equal(made["target"], made["input"] + 1)
    starts = made["input"][:, 0]
    assert torch.equal(made["input"], starts[:, None] + torch.arange(24))
    counts = torch.bincount(starts, minlength=10).numpy()
    assert len(counts) == 10
    assert ((counts - 900) ** 2 / 900).sum() < 9 + 5 * 18**0.5


def test_a_span_of_a_whole_row_is_the_row():
    ids = tokens(5, 24)
    assert torch.equal(ran(SPAN, keys(5), input=ids, target=ids)["input"], torch.from_numpy(ids))


def test_a_span_is_taken_along_the_first_axis_of_any_field():
    frames = np.arange(4 * 30 * 2).reshape(4, 30, 2).astype(np.float32)
    places = np.tile(np.arange(30), (4, 1)).astype(np.uint16)
    made = ran(RandomSpan(length=3, fields=["frames", "place"]), keys(4), frames=frames, place=places)
    assert made["frames"].shape == (4, 3, 2)
    for row in range(4):
        start = int(made["place"][row, 0].item())
        assert torch.equal(made["frames"][row], torch.from_numpy(frames[row, start : start + 3]))


# --- shift -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [1, 4])
def test_targets_are_the_next_tokens_in_memory_of_their_own(num_rows):
    ids = torch.from_numpy(tokens(num_rows, 9))
    made = ran(Shift(), keys(num_rows), input=ids)
    assert torch.equal(made["input"], ids[:, :-1])
    assert torch.equal(made["target"], ids[:, 1:])
    made["input"].zero_()
    assert torch.equal(made["target"], ids[:, 1:])
    assert made["target"].is_contiguous()


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MaskTokens(mask_id=10, vocab_size=10), "must be in 0 .. vocab_size - 1"),
        (lambda: MaskTokens(mask_id=-1, vocab_size=10), "got -1 with 10"),
        (lambda: MaskTokens(mask_id=1, vocab_size=2**32 + 1), "at most 2\\*\\*32"),
        (lambda: MaskTokens(mask_id=1, vocab_size=9, probability=1.1), "in 0 .. 1: got 1.1"),
        (lambda: MaskTokens(mask_id=1, vocab_size=9, probability=float("nan")), "got nan"),
        (lambda: MaskTokens(mask_id=1, vocab_size=9, random=0.6, keep=0.5), "got 0.15, 0.6, 0.5"),
        (lambda: MaskTokens(mask_id=1, vocab_size=9, target="input"), "another field"),
        (lambda: Shift(target="input"), "another field"),
        (lambda: MaskTokens(mask_id=1, vocab_size=9, ignore=["0"]), "ignore: must be a list of integers, got '0'"),
        (lambda: RandomSpan(length=0), "at least 1"),
        (lambda: RandomSpan(length=3, fields="input"), "a list of different names"),
        (lambda: RandomSpan(length=3, fields=[]), "a list of different names"),
        (lambda: RandomSpan(length=3, fields=["a", "a"]), "a list of different names"),
    ],
)
def test_constants_out_of_range_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("transform", "fields", "message"),
    [
        (MASKING, {"image": ("int64", (40,))}, "needs a field 'input', and there are image"),
        (MASKING, {"input": ("float32", (40,))}, "field 'input' is float32"),
        (MASKING, {"input": ("bool", (40,))}, "field 'input' is bool"),
        (SPAN, {"input": ("int64", (40,))}, "needs a field 'target'"),
        (SPAN, {"input": ("int64", (23,)), "target": ("int64", (23,))}, r"keeps 24 tokens.*'input' have shape \(23,\)"),
        (SPAN, {"input": ("int64", (40,)), "target": ("int64", ())}, r"'target' have shape \(\)"),
        (SPAN, {"input": ("int64", (40,)), "target": ("int64", (41,))}, "40 of field 'input' and 41 of 'target'"),
        (Shift(), {"input": ("int64", (1,))}, r"at least 2 tokens.*shape \(1,\)"),
        (Shift(), {"input": ("int64", ())}, r"at least 2 tokens.*shape \(\)"),
        (Shift(), {"input": ("float64", (9,))}, "field 'input' is float64"),
    ],
)
def test_fields_that_do_not_fit_are_refused_before_and_with_a_batch(transform, fields, message):
    with pytest.raises(TransformError, match=message):
        transform.output(SampleSpec.of(**fields))
    arrays = {name: np.zeros((2, *shape), dtype) for name, (dtype, shape) in fields.items()}
    with pytest.raises(TransformError, match=message):
        ran(transform, keys(2), **arrays)


@pytest.mark.parametrize(("value", "dtype"), [(30, "int64"), (-2, "int64"), (65535, "uint16"), (-101, "int8")])
def test_ids_beyond_the_vocabulary_are_refused_with_value_row_and_sample(value, dtype):
    ids = tokens(4, 9).astype(dtype) % 30
    ids[2:, 5] = value
    message = rf"field 'input' holds id {value} in row 2 \(sample 2\), but vocab_size=30 .* 0 .. 29; set vocab_size"
    with pytest.raises(TransformError, match=message):
        ran(MaskTokens(mask_id=3, vocab_size=30, ignore_below=4), keys(4), input=ids)
    ran(MaskTokens(mask_id=3, vocab_size=30, ignore=[value]), keys(4), input=ids)


def test_ids_beyond_the_vocabulary_are_refused_in_rows_of_different_lengths():
    ragged = torch.nested.nested_tensor_from_jagged(torch.tensor([1, 2, 3, 4, 5, 30]), torch.tensor([0, 2, 2, 5, 6]))
    with pytest.raises(TransformError, match=r"holds id 30 in row 3 \(sample 3\)"):
        ran(MaskTokens(mask_id=3, vocab_size=30), keys(4), input=ragged)


def test_the_last_id_of_a_vocabulary_is_one():
    ran(MaskTokens(mask_id=29, vocab_size=30), keys(1), input=np.array([[0, 29]]))


@pytest.mark.parametrize("transform", [RandomSpan(length=2, fields=["input"]), Shift()], ids=["span", "shift"])
def test_rows_of_different_lengths_are_refused_where_padding_would_count(transform):
    with pytest.raises(TransformError, match="rows of one length, and those of field 'input'"):
        transform.output(SampleSpec((Field("input", "int64", is_ragged=True),)))
    ragged = torch.nested.nested_tensor_from_jagged(torch.arange(6), torch.tensor([0, 2, 6]))
    with pytest.raises(TransformError, match="rows of one length, and those of field 'input'"):
        ran(transform, keys(2), input=ragged)
