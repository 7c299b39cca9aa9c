"""Transforms in a loader: the same numbers however the rows were read, split or resumed, and errors at their step."""

import weakref

import numpy as np
import pytest
import torch

from flodl_pipe import Loader
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ConfigError, LoaderError, ResumeError, TransformError
from flodl_pipe.sources.protocol import Fingerprint
from flodl_pipe.transforms.image_basic import HorizontalFlip, Normalize, RandomCrop, ToFloat
from flodl_pipe.transforms.image_mix import Mixup
from tests.loader.inside import making_of
from tests.loader.sources import Numbers

MODES = [
    {"mode": "resident", "readers": 0},
    {"mode": "resident", "readers": 2},
    {"mode": "streaming", "readers": 0},
    {"mode": "streaming", "readers": 3},
]


class Pictures:
    """Small pictures with labels, in memory, drawn from their numbers."""

    def __init__(self, n=120, side=12):
        self.spec = self.delivered = SampleSpec.of(image=("uint8", (3, side, side)), label=("int64", ()))
        self.thread_safe = True
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 256, (n, 3, side, side), dtype=np.uint8)
        self.labels = rng.integers(0, 5, n)

    def __len__(self):
        return len(self.labels)

    def read_into(self, indices, rows, out):
        out["image"][rows] = self.images[indices]
        out["label"][rows] = self.labels[indices]

    def deliver(self, stored, out):
        for name in stored:
            np.copyto(out[name], stored[name])

    def fingerprint(self, *, full=False):
        return Fingerprint(f"pictures: {len(self)}", "0" * 32, full)


def fused():
    return [RandomCrop(8, padding=2), HorizontalFlip(), Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.25])]


def add_noise(batch, keys):
    """Not fused: the user's own."""
    noise = torch.from_numpy(keys.uniform(1))[:, :, None, None]
    return batch.with_fields(batch.names, (batch["image"].float() + noise, batch["label"]))


def everything(loader, epochs=2):
    return [
        (batch.pick_keys.sample.tolist(), batch.pick_keys.repeat.tolist(), [t.numpy().copy() for t in batch])
        for epoch in range(epochs)
        for batch in loader.epoch(epoch)
    ]


def same(found, wanted):
    assert len(found) == len(wanted)
    for (samples, repeats, fields), (others, again, expected) in zip(found, wanted, strict=True):
        assert (samples, repeats) == (others, again)
        for field, other in zip(fields, expected, strict=True):
            assert field.dtype == other.dtype
            np.testing.assert_array_equal(field, other)


@pytest.mark.parametrize("transforms", [fused(), [*fused(), add_noise], add_noise], ids=["fused", "mixed", "own"])
@pytest.mark.parametrize("augment", [1, 3])
def test_readers_and_modes_change_nothing(transforms, augment):
    found = []
    for options in MODES:
        with Loader(
            Pictures(), batch_size=16, drop_last=False, augment=augment, transforms=transforms, **options
        ) as it:
            found.append(everything(it))
    assert len(found[0]) == 2 * -(-120 * augment // 16)
    for other in found[1:]:
        same(other, found[0])


def test_a_fused_chain_gives_what_its_steps_give_one_by_one():
    steps = fused()
    with Loader(Pictures(), batch_size=16, transforms=steps) as loader:
        quick = everything(loader)
        assert making_of(loader).one_pass is not None
    with Loader(Pictures(), batch_size=16, transforms=[*steps, lambda batch, keys: batch]) as loader:
        assert making_of(loader).is_apart
        same(everything(loader), quick)


def test_a_digest_is_that_of_the_stored_rows():
    with (
        Loader(Pictures(), batch_size=16, keep_digest=True) as plain,
        Loader(Pictures(), batch_size=16, keep_digest=True, transforms=fused()) as changed,
        Loader(Pictures(), batch_size=16, keep_digest=True, transforms=add_noise) as own,
    ):
        for loader in (plain, changed, own):
            everything(loader)
        assert plain.statistics().digest == changed.statistics().digest == own.statistics().digest


def test_a_sample_that_comes_again_draws_other_numbers():
    with Loader(Pictures(8), batch_size=24, augment=3, transforms=fused()) as loader:
        (batch,) = loader.epoch(0)
    pairs = set(zip(batch.pick_keys.sample.tolist(), batch.pick_keys.repeat.tolist(), strict=True))
    assert pairs == {(sample, repeat) for sample in range(8) for repeat in range(3)}
    assert len({image.numpy().tobytes() for image in batch["image"]}) > 20


def test_each_epoch_draws_other_numbers_and_the_same_one_the_same():
    with Loader(Pictures(), batch_size=120, shuffle=False, transforms=fused()) as loader:
        (first,), (second,), (again,) = (list(loader.epoch(epoch)) for epoch in (0, 1, 0))
    assert not torch.equal(first["image"], second["image"])
    assert torch.equal(first["image"], again["image"])


def test_ranks_share_what_one_process_gets():
    with Loader(Pictures(), batch_size=24, transforms=fused()) as loader:
        alone = everything(loader, 1)
    ranks = []
    for rank in range(3):
        context = RunContext(rank, 3, ratios=(3, 1, 2))
        with Loader(Pictures(), batch_size=8, transforms=fused(), context=context) as loader:
            ranks.append(everything(loader, 1))
    joined = [
        (
            sum((part[0] for part in parts), []),
            sum((part[1] for part in parts), []),
            [np.concatenate(fields) for fields in zip(*(part[2] for part in parts), strict=True)],
        )
        for parts in zip(*ranks, strict=True)
    ]
    same(joined, alone)
    assert [len(part[0]) for part in (ranks[0][0], ranks[1][0], ranks[2][0])] == [12, 4, 8]


@pytest.mark.parametrize("ratios", [None, (5, 2, 1)])
@pytest.mark.parametrize("drop_last", [True, False, "pad"])
def test_pairs_stay_together_on_any_number_of_ranks(ratios, drop_last):
    def steps():
        return [ToFloat(), Mixup(alpha=0.4, num_classes=5)]

    with Loader(Pictures(101), batch_size=24, drop_last=drop_last, transforms=steps()) as loader:
        alone = everything(loader, 1)
    ranks = []
    for rank in range(3):
        context = RunContext(rank, 3, ratios=ratios)
        with Loader(Pictures(101), batch_size=8, drop_last=drop_last, transforms=steps(), context=context) as loader:
            ranks.append(
                [
                    batch["image"][: int(batch.size if batch.valid is None else batch.valid.sum())]
                    for batch in loader.epoch(0)
                ]
            )
    for step, (parts, whole) in enumerate(zip(zip(*ranks, strict=True), alone, strict=True)):
        joined = torch.cat(parts).numpy()
        assert len(joined) == min(24, 101 - 24 * step)
        np.testing.assert_array_equal(joined, whole[2][0][: len(joined)])


def test_a_batch_scope_is_refused_on_several_ranks():
    def whole(batch, keys):
        return batch

    whole.scope = "batch"
    with pytest.raises(ConfigError, match=r"scope 'batch' \(whole\) looks at all rows of a batch, and 2 ranks"):
        Loader(Pictures(), batch_size=8, transforms=whole, context=RunContext(0, 2))
    with Loader(Pictures(), batch_size=8, transforms=whole) as loader:
        assert next(iter(loader)).size == 8


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda batch, keys: None, "nothing"),
        (lambda batch, keys: batch.with_fields(batch.names, tuple(t[:-1] for t in batch)), "rows"),
        (lambda batch, keys: batch.to("meta"), "meta"),
    ],
)
@pytest.mark.parametrize("readers", [0, 2])
def test_a_transform_that_breaks_its_contract_ends_the_loop_with_its_name(function, text, readers):
    with Loader(Pictures(), batch_size=8, transforms={"mine": function}, readers=readers) as loader:
        with pytest.raises(TransformError, match=text) as caught:
            next(iter(loader))
        assert "mine" in str(caught.value)


def test_an_error_of_ones_own_stands_at_its_step():
    def fails_at_17(batch, keys):
        if 17 in keys.sample:
            raise RuntimeError("seventeen")
        return batch

    with Loader(Pictures(40), batch_size=4, shuffle=False, transforms=fails_at_17) as loader:
        good = []
        with pytest.raises(RuntimeError, match="seventeen"):
            good += (batch.pick_keys.sample.tolist() for batch in loader)
    with Loader(Pictures(40), batch_size=4, shuffle=False, transforms=fails_at_17) as loader:
        iterator = iter(loader)
        assert [next(iterator).pick_keys.sample.tolist() for _ in range(4)] == [
            [*range(i, i + 4)] for i in range(0, 16, 4)
        ]
        with pytest.raises(RuntimeError, match="seventeen"):
            next(iterator)


def test_batches_are_the_loops_own_even_in_inference_mode():
    with Loader(Pictures(), batch_size=8, readers=0, transforms=add_noise) as loader:
        with torch.inference_mode():
            batch = next(iter(loader))
        assert not batch["image"].is_inference()
        assert not batch["image"].requires_grad


def test_resuming_goes_on_with_the_same_numbers_and_other_transforms_are_refused():
    with Loader(Pictures(), batch_size=16, augment=2, transforms=fused()) as loader:
        whole = everything(loader, 1)
        iterator = iter(loader.epoch(0))
        for _ in range(5):
            next(iterator)
        state = loader.state_dict()
    assert "random_crop" in state["transforms"]
    with Loader(Pictures(), batch_size=16, augment=2, readers=0, transforms=fused()) as loader:
        loader.load_state_dict(state)
        same(everything(loader, 1), whole[5:])
    with Loader(Pictures(), batch_size=16, augment=2, transforms=fused()[:2]) as loader:
        with pytest.raises(ResumeError, match=r"transforms saved: .*normalize") as caught:
            loader.load_state_dict(state)
        assert "transforms now" in str(caught.value)


def test_what_is_no_transform_is_refused_at_build():
    with pytest.raises(LoaderError, match="callable"):
        Loader(Numbers(10), batch_size=2, transforms=[3])
    with pytest.raises(TransformError, match="image"):
        Loader(Numbers(10), batch_size=2, transforms=[RandomCrop(4)])


@pytest.mark.parametrize("transforms", [fused(), add_noise], ids=["fused", "own"])
def test_samples_that_pass_through_are_batches_of_one_to_transforms(transforms):
    with Loader(Pictures(), batch_size=1, shuffle=False, transforms=transforms) as loader:
        batches = [batch["image"][0] for batch in loader]
    with Loader(Pictures(), batch_size=None, shuffle=False, transforms=transforms) as loader:
        alone = [batch["image"] for batch in loader]
    assert [image.shape for image in alone] == [image.shape for image in batches]
    assert all(map(torch.equal, alone, batches))


def test_a_state_of_batches_is_continued_sample_by_sample():
    with Loader(Pictures(), batch_size=12) as loader:
        (_, *rest) = [batch.pick_keys.sample.tolist() for batch in loader]
        next(iter(loader.epoch(0)))
        state = loader.state_dict()
    with Loader(Pictures(), batch_size=None) as loader:
        loader.load_state_dict(state)
        assert [int(batch.pick_keys.sample[0]) for batch in loader] == sum(rest, [])


def test_a_step_that_does_not_fit_is_named():
    with pytest.raises(TransformError, match=r"transform 'myflip': .*imag"):
        Loader(Pictures(), batch_size=4, transforms={"myflip": HorizontalFlip(field="imag")})


@pytest.mark.parametrize("readers", [0, 1, 3])
def test_a_fault_that_comes_once_ends_the_loop_however_it_reads(readers):
    failed = []

    def once(batch, keys):
        if 17 in keys.sample and not failed:
            failed.append(True)
            raise RuntimeError("once")
        return batch

    with (
        Loader(Pictures(), batch_size=4, readers=readers, transforms=once) as loader,
        pytest.raises(RuntimeError, match="once"),
    ):
        list(loader)


@pytest.mark.parametrize(
    ("transforms", "mode", "readers"),
    [
        (fused(), "resident", 2),
        (fused(), "streaming", 4),
        (add_noise, "streaming", 2),
        pytest.param(fused(), "resident", 0, marks=pytest.mark.full),
        pytest.param(fused(), "resident", 4, marks=pytest.mark.full),
        pytest.param(add_noise, "resident", 4, marks=pytest.mark.full),
    ],
)
def test_a_step_large_enough_to_be_split_is_the_same(transforms, mode, readers):
    """A step of 11 MiB is read in parts by several readers, where nothing looks at it whole."""
    source = Pictures(1600, side=64)
    with Loader(source, batch_size=900, readers=0, mode="streaming", drop_last=False, transforms=transforms) as loader:
        whole = everything(loader, 1)
    options = {"readers": readers, "mode": mode, "drop_last": False, "transforms": transforms}
    with Loader(source, batch_size=900, **options) as loader:
        assert loader.plan.step_parts == (readers if readers and transforms is not add_noise else 1)
        same(everything(loader, 1), whole)


def test_the_loops_torch_modes_do_not_reach_a_transform():
    seen = []

    def look(batch, keys):
        product = batch["image"].float().flatten(1)[:, :4] @ torch.ones(4, 2)
        seen.append((product.dtype, product.device.type, torch.empty(0).device.type))
        return batch

    for readers in (0, 1):
        with (
            Loader(Pictures(), batch_size=8, readers=readers, prefetch="auto", transforms=look) as loader,
            torch.autocast("cpu", dtype=torch.bfloat16),
            torch.device("meta"),
        ):
            list(loader)
    assert set(seen) == {(torch.float32, "cpu", "cpu")}


@pytest.mark.parametrize("of_batch", [False, True])
def test_keys_are_read_only(of_batch):
    def spoil(batch, keys):
        (batch.pick_keys if of_batch else keys).sample[:] = 0
        return batch

    with Loader(Pictures(), batch_size=8, transforms=spoil) as loader, pytest.raises(ValueError, match="read-only"):
        next(iter(loader))


def test_what_transforms_take_is_granted():
    def ring(**options):
        with Loader(Pictures(), batch_size=8, prefetch=2, readers=1, **options) as loader:
            return dict(loader.granted())["ring"]

    as_floats = ring(transforms=[ToFloat(), lambda batch, keys: batch])
    assert ring(transforms=fused()) > ring() + 10_000
    assert as_floats > 0


@pytest.mark.parametrize("world", [1, 2])
def test_a_batch_samplers_pairs_stay_together(world):
    batches = [[*range(first, first + size)] for first, size in ((0, 6), (6, 10), (16, 7), (23, 4))]

    def images(rank, size):
        with Loader(
            Pictures(),
            batch_sampler=batches,
            transforms=[ToFloat(), Mixup(alpha=1.0, num_classes=5)],
            context=RunContext(rank, size),
        ) as loader:
            return [batch["image"] for batch in loader]

    whole = images(0, 1)
    parts = [images(rank, world) for rank in range(world)]
    for step, rows in enumerate(zip(*parts, strict=True)):
        assert torch.equal(torch.cat(rows), whole[step])


def test_what_a_function_makes_is_bounded_by_what_was_granted(caplog):
    alive, most = set(), []

    def large(batch, keys):
        image = torch.zeros(len(keys), 1 << 18)
        number = int(keys.sample[0])
        alive.add(number)
        weakref.finalize(image, alive.discard, number)
        most.append(len(alive))
        return batch.with_fields(("image",), (image,))

    with caplog.at_level("INFO"), Loader(Pictures(160), batch_size=8, readers=1, transforms=large) as loader:
        iterator = iter(loader)
        batch = next(iterator)
        assert dict(loader.granted())["ring"] < 8 << 20
        assert "1 are read ahead instead of 20" in caplog.text  # of 8 MiB each, which shows with the first
        for batch in iterator:  # noqa: B007 - it is held until the next is there
            pass
        del batch
    assert len(most) == 20
    assert max(most) <= 3  # two, before it was known what one takes, beside the one that the loop holds
    assert max(most[4:]) <= 2
