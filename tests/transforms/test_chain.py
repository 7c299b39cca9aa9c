"""A chain: steps in order, random numbers of their own, and what a step may not give back."""

import re
from functools import partial

import numpy as np
import pytest
import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import LoaderError, TransformError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.chain import Chain, as_chain, stream_of
from flodl_pipe.transforms.tokens import MaskTokens, RandomSpan, Shift

MASKING = MaskTokens(mask_id=1, vocab_size=100)


def keys(num_rows=4, first=0):
    sample = np.arange(first, first + num_rows)
    return PickKeys(sample, np.zeros_like(sample), 3, 42)


def batch(num_rows=4, **attributes):
    fields = (torch.arange(num_rows * 6.0).view(num_rows, 6), torch.arange(num_rows))
    return Batch(("image", "label"), fields, pick_keys=keys(num_rows), **attributes)


def ran(*functions, given=None):
    given = batch() if given is None else given
    return as_chain(list(functions))(given, given.pick_keys)


def noise(batch, keys):
    """Add keyed numbers, one for each number of a picture."""
    drawn = torch.from_numpy(keys.uniform(batch["image"].shape[1]))
    return batch.with_fields(batch.names, (batch["image"] + drawn, batch["label"]))


def with_image(make):
    """Return a function that puts another picture in its place."""
    return lambda batch, keys: batch.with_fields(batch.names, (make(batch["image"]), batch["label"]))


# --- running ---------------------------------------------------------------------------------------------------------


def test_no_steps_change_nothing():
    chain, given = as_chain(None), batch()
    assert (chain.is_empty, chain.names, chain.scope, chain.tag, len(chain)) == (True, (), "row", "", 0)
    assert chain(given, keys()) is given
    assert chain.output(SampleSpec.of(a=("int64", ()))) == SampleSpec.of(a=("int64", ()))
    assert chain.array_pass(SampleSpec.of(a=("int64", ()))) is None


def test_steps_run_in_order():
    made = as_chain({"double": with_image(lambda x: x * 2), "plus": with_image(lambda x: x + 1)})(batch(), keys())
    assert torch.equal(made["image"], batch()["image"] * 2 + 1)


def test_a_step_draws_from_the_stream_of_its_name():
    made = as_chain({"noise": noise})(batch(), keys())
    expected = batch()["image"] + torch.from_numpy(keys().of_stream(stream_of("noise")).uniform(6))
    assert torch.equal(made["image"], expected)


def test_two_steps_of_one_function_draw_different_numbers():
    seen = {}

    def record(name, batch, keys):
        seen[name] = keys.uniform(3).tolist()
        return batch

    as_chain({name: partial(record, name) for name in ("a", "b", "c")})(batch(), keys())
    first = dict(seen)
    assert len({str(values) for values in first.values()}) == 3
    seen.clear()
    as_chain({name: partial(record, name) for name in ("c", "a")})(batch(), keys())
    assert seen == {name: first[name] for name in ("c", "a")}, "what a step draws does not depend on the others"


def test_streams_stay_what_they_are():
    """A change would give every run with transforms other augmentations."""
    assert [stream_of(name) for name in ("crop", "flip")] == [CROP, FLIP]
    assert len({stream_of(f"step_{number}") for number in range(10_000)}) == 10_000


CROP, FLIP = 16654413820857875841, 4494089339056010658


@pytest.mark.parametrize("cuts", [(1,), (8,), (2, 3, 9)])
def test_a_function_of_ones_own_gives_the_same_rows_in_any_split(cuts):
    chain, whole_batch = as_chain([noise, noise]), batch(16)
    whole = chain(whole_batch, whole_batch.pick_keys)
    for start, stop in zip([0, *cuts], [*cuts, 16], strict=True):
        rows = slice(start, stop)
        row_keys = whole_batch.pick_keys.rows(rows)
        part = Batch(("image", "label"), tuple(tensor[rows] for tensor in batch(16)), pick_keys=row_keys)
        assert torch.equal(chain(part, row_keys)["image"], whole["image"][rows])


def test_global_random_states_are_untouched():
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 - the state itself
    as_chain([noise, lambda b, k: b])(batch(), keys())
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def test_keys_weight_valid_rows_and_cursor_go_past_the_steps():
    class Place:
        def state(self):
            return {"position": 4}

    valid = torch.tensor([True, True, True, False])
    given = batch(weight=0.75, valid=valid, cursor=Place())

    def anew(batch, keys):
        return Batch(("x",), (batch["image"] + 1,), pick_keys=keys)

    made = ran(anew, given=given)
    assert made.names == ("x",)
    assert (made.weight, made.valid, made.cursor) == (0.75, valid, {"position": 4})
    assert made.pick_keys is given.pick_keys
    assert made.pick_keys.stream == 0


def test_fields_may_be_added_renamed_removed_and_changed_in_place():
    def change(batch, keys):
        batch["image"].mul_(2)
        return batch.with_fields(("pixels", "mean"), (batch["image"], batch["image"].mean(1)))

    made = ran(change)
    assert made.names == ("pixels", "mean")
    assert torch.equal(made["pixels"], batch()["image"] * 2)


# --- what a step may not do ------------------------------------------------------------------------------------------


def test_the_step_is_named_when_it_raises():
    def broken(batch, keys):
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ") as caught:
        as_chain({"fine": noise, "mine": broken})(batch(), keys())
    (note,) = caught.value.__notes__
    assert note.startswith("raised by transform 'mine', step 2 of 2, for Batch(image: float32 (4, 6)")


def test_an_interrupt_is_left_alone():
    def interrupted(batch, keys):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        ran(interrupted)
    assert not getattr(caught.value, "__notes__", [])


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "'mine' returned nothing; is a return statement missing?"),
        ({"image": 1}, r"returned a dict; return batch\.with_fields"),
        (torch.zeros(4, 6), r"returned a tensor of shape \(4, 6\); return the batch that it belongs to"),
        ((1, 2), "returned tuple; return the batch"),
        ("batch", "returned str; return the batch"),
    ],
)
def test_what_is_no_batch_is_refused_saying_what_to_return(returned, message):
    with pytest.raises(TransformError, match=message):
        as_chain({"mine": lambda batch, keys: returned})(batch(), keys())


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (torch.zeros(3, 6), r"'image' of shape \(3, 6\), and the batch has 4 rows \(before: \(4, 6\)\)"),
        (torch.zeros(8, 6), r"'image' of shape \(8, 6\), and the batch has 4 rows"),
        (torch.tensor(1.0), r"'image' of shape \(\), and the batch has 4 rows"),
        (torch.zeros(4, 6, device="meta"), "'image' on device meta, and the batch is on cpu"),
        (np.zeros((4, 6)), "'image' as ndarray; a field is a tensor of 4 rows"),
    ],
)
def test_a_field_of_other_rows_or_another_device_is_refused(image, message):
    with pytest.raises(TransformError, match=f"transform 'mine' returned field {message}"):
        as_chain({"mine": with_image(lambda x: image)})(batch(), keys())


def test_a_batch_moved_to_another_device_is_refused():
    given = batch(valid=torch.ones(4, dtype=torch.bool))
    with pytest.raises(TransformError, match="'image' on device meta, and the batch is on cpu"):
        ran(lambda batch, keys: batch.to("meta"), given=given)


def test_rows_left_out_with_their_keys_are_refused():
    def first_two(batch, keys):
        return Batch(batch.names, tuple(tensor[:2] for tensor in batch), pick_keys=keys.rows(slice(2)))

    with pytest.raises(TransformError, match=r"shape \(2, 6\), and the batch has 4 rows.*use a subset or a sampler"):
        ran(first_two)

    def keys_only(batch, keys):
        return Batch(batch.names, batch.values(), pick_keys=keys.rows(slice(2)))

    with pytest.raises(TransformError, match="keys of 2 rows for a batch of 4"):
        ran(keys_only)


def test_no_fields_are_refused():
    with pytest.raises(TransformError, match="a batch of no fields"):
        ran(lambda batch, keys: batch.with_fields((), ()))


@pytest.mark.parametrize(
    "pair",
    [
        lambda x: (x, x),
        lambda x: (x, x.view(4, 3, 2)),
        lambda x: (x[:, :-1], x[:, 1:]),
        lambda x: (x[:, ::2], x[:, 1::2]),
        lambda x: x.chunk(2, dim=1),
        lambda x: (x, torch.from_numpy(x.numpy()[:, 2:])),
    ],
    ids=["same", "view", "shifted", "interleaved", "chunks", "through numpy"],
)
def test_fields_that_share_memory_are_refused(pair):
    with pytest.raises(TransformError, match=r"'mine' returned fields 'a' .* 'b' .* share memory.*return b\.clone\(\)"):
        as_chain({"mine": lambda batch, keys: batch.with_fields(("a", "b"), pair(batch["image"]))})(batch(), keys())


def test_a_field_whose_elements_are_one_in_memory_is_refused():
    with pytest.raises(TransformError, match=r"'image' \(4, 6\) expanded.*return it with \.contiguous\(\)"):
        ran(with_image(lambda x: x[:, :1].expand(4, 6)))
    assert ran(with_image(lambda x: x[:, :1].expand(4, 6).contiguous())).names == ("image", "label")


def test_copies_and_empty_fields_share_nothing():
    def split(batch, keys):
        x = batch["image"]
        return batch.with_fields(("a", "b", "c"), (x[:, 1:], x[:, :-1].clone(), x[:, :0]))

    assert ran(split).names == ("a", "b", "c")


def test_fields_that_came_in_one_piece_of_memory_may_stay_in_it():
    whole = torch.arange(24.0)
    given = Batch(("a", "b"), (whole[:16].view(4, 4), whole[16:].view(4, 2)), pick_keys=keys())
    made = as_chain(lambda b, k: b.with_fields(("a", "b"), (b["a"].flatten(1), b["b"].mul_(2))))(given, keys())
    assert torch.equal(made["b"], torch.arange(16.0, 24).view(4, 2) * 2)
    with pytest.raises(TransformError, match="share memory"):
        as_chain(lambda b, k: b.with_fields(("a", "b"), (b["a"], b["a"][:, 1:])))(given, keys())


def test_valid_rows_and_the_weight_are_the_loaders():
    def marks(batch, keys):
        batch.valid = batch["label"] > 1
        return batch

    with pytest.raises(TransformError, match=r"changed batch\.valid.*a field of its own"):
        ran(marks)

    def weighs(batch, keys):
        batch.weight = 0.5
        return batch

    with pytest.raises(TransformError, match=r"changed batch\.weight from 1\.0 to 0\.5"):
        ran(weighs)


def test_a_jagged_field_is_held_to_its_rows():
    lengths = torch.nested.nested_tensor_from_jagged(torch.arange(6), torch.tensor([0, 2, 2, 5, 6]))
    made = ran(lambda batch, keys: batch.with_fields(("ids",), (lengths,)))
    assert made["ids"].shape[0] == 4
    with pytest.raises(TransformError, match=r"'a' .* and 'b' .* share memory"):
        ran(lambda batch, keys: batch.with_fields(("a", "b"), (lengths, lengths.values()[:4])))
    short = torch.nested.nested_tensor_from_jagged(torch.arange(6), torch.tensor([0, 2, 6]))
    with pytest.raises(TransformError, match="and the batch has 4 rows"):
        ran(lambda batch, keys: batch.with_fields(("ids",), (short,)))


# --- what a chain says of itself -------------------------------------------------------------------------------------


def test_the_scope_is_the_widest_of_its_steps():
    def pairs(batch, keys):
        return batch

    pairs.scope = "pair"
    assert as_chain([noise, MASKING]).scope == "row"
    assert as_chain([noise, pairs, MASKING]).scope == "pair"

    class Whole:
        scope = "batch"

        def __call__(self, batch, keys):
            return batch

    assert as_chain([Whole(), pairs]).scope == "batch"


def test_the_tag_tells_chains_apart_and_can_be_read():
    tag = as_chain({"mask": MASKING, "mine": noise}).tag
    assert re.fullmatch(r"mask: mask_tokens\(mask_id=1, .*\); mine: \S*test_chain:noise\(\) \[[0-9a-f]{8}\]", tag)
    others = [
        as_chain({"mask": MASKING}).tag,
        as_chain({"mine": noise, "mask": MASKING}).tag,
        as_chain({"mask_2": MASKING, "mine": noise}).tag,
        as_chain({"mask": MaskTokens(mask_id=2, vocab_size=100), "mine": noise}).tag,
        as_chain({"mask": MASKING, "mine": with_image(abs)}).tag,
        as_chain({"mask": MASKING, "mine": partial(noise)}).tag,
    ]
    assert others.pop() == tag
    assert len({tag, *others}) == 6


def test_the_output_is_that_of_its_steps_in_order():
    spec = SampleSpec.of(input=("uint16", (33,)))
    chain = Chain([("shift", Shift()), ("span", RandomSpan(length=8))])
    assert chain.output(spec) == SampleSpec.of(input=("int64", (8,)), target=("int64", (8,)))
    assert as_chain([Shift(), noise, MASKING]).output(spec) is None


def test_a_step_that_cannot_work_is_named_beforehand():
    chain = as_chain({"shift": Shift(), "span": RandomSpan(length=40)})
    with pytest.raises(TransformError, match="transform 'span': random_span keeps 40 tokens"):
        chain.output(SampleSpec.of(input=("int64", (33,))))


# --- making one ------------------------------------------------------------------------------------------------------


def test_a_chain_is_made_of_a_callable_a_sequence_or_names():
    class HTTPJitter:
        def __call__(self, batch, keys):
            return batch

    assert as_chain(noise).names == ("noise",)
    assert as_chain((noise, MASKING, noise, HTTPJitter(), lambda batch, keys: batch, noise)).names == (
        *("noise", "mask_tokens", "noise_2", "httpjitter", "function", "noise_3"),
    )
    assert as_chain({"a": noise, "b": MASKING}).names == ("a", "b")
    assert as_chain([]).is_empty
    chain = as_chain(noise)
    assert as_chain(chain) is chain


def test_a_module_is_a_transform_if_its_forward_takes_a_batch_and_keys():
    class Scale(torch.nn.Module):
        def forward(self, batch, keys):
            return batch.with_fields(batch.names, (batch["image"] * 2, batch["label"]))

    assert torch.equal(ran(Scale())["image"], batch()["image"] * 2)

    class Image(torch.nn.Module):
        def forward(self, img):
            return img

    with pytest.raises(LoaderError, match=r"takes \(img\), and a transform is called with \(batch, keys\)"):
        as_chain(Image())


class Compose:
    """As in libraries of transforms of single samples."""

    def __call__(self, img):
        return img


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (
            Compose(),
            r"Compose takes \(img\), and a transform is called with \(batch, keys\) and returns the batch; write",
        ),
        ([noise, Compose()], "transform 1: .*Compose takes"),
        ({"a": Compose()}, "transform 'a': .*Compose takes"),
        (lambda: None, r"takes \(\)"),
        (lambda a, b, c: a, r"takes \(a, b, c\)"),
        (Shift, r"the class Shift, not an object of it; give Shift\(\)"),
        ("random_crop", "str 'random_crop', which cannot be called; give a callable, a sequence"),
        ([("crop", noise)], "transform 0 is tuple"),
        (3, "int '3', which cannot be called"),
        ({"a": None}, "transform 'a' is NoneType 'None'"),
        ({"a b": noise}, "'a b' must be letters, digits and _"),
        ({1: noise}, "1 must be letters"),
        ([Chain([("mask", MASKING)])], "a chain is no step of another"),
    ],
)
def test_what_is_no_transform_is_refused_saying_what_is_taken(thing, message):
    with pytest.raises(LoaderError, match=message):
        as_chain(thing)


def test_an_unknown_scope_is_refused():
    def odd(batch, keys):
        return batch

    odd.scope = "sample"
    with pytest.raises(LoaderError, match=r"scope of .*odd must be 'row', 'pair' or 'batch', got 'sample'"):
        as_chain(odd)


def test_a_name_comes_once():
    with pytest.raises(LoaderError, match="'a' and 'a' would draw the same random numbers"):
        Chain([("a", MASKING), ("b", MASKING), ("a", MASKING)])


def test_a_step_of_a_chain_has_a_scope():
    with pytest.raises(LoaderError, match="transform 'a' has no scope"):
        Chain([("a", noise)])

    class Odd:
        scope = "rows"

        def __call__(self, batch, keys):
            return batch

    with pytest.raises(LoaderError, match="the scope of transform 'a' must be one of row, pair, batch, got 'rows'"):
        Chain([("a", Odd())])
