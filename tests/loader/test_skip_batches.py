"""Skipping beside transforms, collation, ragged rows and users' datasets: only samples are at fault."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import TransformError
from flodl_pipe.loader.loader import Loader
from flodl_pipe.transforms.image_basic import HorizontalFlip, Normalize, RandomCrop, ToFloat
from flodl_pipe.transforms.image_mix import Mixup
from tests.loader.skipping import BAD, TORN, WAYS, N, Pictures, run, same, skipping
from tests.loader.sources import Numbers

FUSED = [RandomCrop(8, padding=2), HorizontalFlip(), Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.25])]


def add_noise(batch, keys):
    noise = torch.from_numpy(keys.uniform(1))[:, :, None, None]
    return batch.with_fields(batch.names, (batch["image"].float() + noise, batch["label"]))


@pytest.mark.parametrize("transforms", [FUSED, [*FUSED, add_noise], add_noise], ids=["fused", "mixed", "own"])
@pytest.mark.parametrize("way", range(len(WAYS)))
def test_transforms_see_good_rows_as_they_would_be(transforms, way):
    options = {"transforms": transforms, "augment": 1 + (way + (transforms is add_noise)) % 2, **WAYS[way]}
    with skipping(Pictures(), **options) as loader:
        whole = run(loader)
    with skipping(Pictures(TORN), **options) as loader:
        found = run(loader)
        assert {sample for sample, _ in loader.skipped} == TORN
    for (samples, repeats, valid, _, fields), (*keys, _, _, expected) in zip(found, whole, strict=True):
        assert [samples, repeats] == keys
        good = [sample not in TORN for sample in samples]
        assert valid == (None if all(good) else good)
        for field, other in zip(fields, expected, strict=True):
            np.testing.assert_array_equal(field[good], other[good])


def test_pairs_do_not_depend_on_ranks():
    def good_rows(world_size):
        found = {}
        for rank in range(world_size):
            context = RunContext(rank, world_size)
            with skipping(
                Pictures(TORN), batch_size=1, global_batch_size=12, context=context,
                transforms=[ToFloat(), Mixup(alpha=1.0, num_classes=5)],
            ) as loader:  # fmt: skip
                for batch in loader:
                    valid = [True] * batch.size if batch.valid is None else batch.valid.tolist()
                    for row, sample in enumerate(batch.pick_keys.sample.tolist()):
                        if valid[row]:
                            found[sample] = batch[0][row].numpy().copy(), batch[1][row].numpy().copy()
        return found

    alone = good_rows(1)
    assert set(alone) == set(range(90)) - TORN
    for world_size in (2, 3):
        other = good_rows(world_size)
        assert set(other) == set(alone)
        for sample, (image, label) in alone.items():
            np.testing.assert_array_equal(other[sample][0], image)
            np.testing.assert_array_equal(other[sample][1], label)


@pytest.mark.parametrize("way", WAYS)
def test_a_fault_of_a_transform_is_no_fault_of_a_sample(way):
    def refuses(batch, keys):
        if 40 in keys.sample:
            raise ValueError("I do not like 40")
        return batch

    with skipping(Pictures(TORN), transforms=refuses, **way) as loader:
        with pytest.raises(ValueError, match="I do not like 40"):
            run(loader)
        assert 40 not in dict(loader.skipped)


def test_a_fault_of_a_collate_function_is_no_fault_of_a_sample():
    def refuses(rows):
        raise ValueError("no batch of these")

    with skipping(Pictures(), collate=refuses) as loader:
        with pytest.raises((ValueError, TransformError), match="no batch of these"):
            run(loader)
        assert loader.skipped == ()


class Sentences:
    """A dataset of one's own, with rows of different lengths."""

    bad = frozenset()

    def __len__(self):
        return 60

    def __getitem__(self, index):
        if index in self.bad:
            raise KeyError(f"sentence {index}")
        return {"ids": np.arange(1 + index % 7, dtype=np.int64) + index, "label": np.int64(index)}


@pytest.mark.parametrize("collate", ["pad", "ragged"])
@pytest.mark.parametrize("way", WAYS[:4])
def test_ragged_rows(collate, way):
    bad = {5, *range(16, 24), 59}
    with skipping(Sentences(), collate=collate, shuffle=False, check_purity=False, **way) as loader:
        whole = list(loader)
    sentences = Sentences()
    with skipping(sentences, collate=collate, shuffle=False, **way) as loader:
        sentences.bad = bad  # only now: building looks at a few samples, to learn the fields
        found = list(loader)
        assert [sample for sample, _ in loader.skipped] == sorted(bad)
        assert dict(loader.skipped)[5].startswith("KeyError")
    for batch, expected in zip(found, whole, strict=True):
        for row, sample in enumerate(batch.pick_keys.sample.tolist()):
            assert (batch.valid is None or bool(batch.valid[row])) == (sample not in bad)
            if sample not in bad:
                ours, theirs = (
                    b["ids"][row] if collate == "pad" else b["ids"].unbind()[row] for b in (batch, expected)
                )
                length = 1 + sample % 7
                assert ours[:length].tolist() == theirs[:length].tolist()
    empty = found[2]
    assert empty.valid.tolist() == [False] * 8
    assert empty.weight == 0.0
    assert empty["label"].tolist() == [0] * 8


def test_samples_that_pass_through_one_by_one():
    with skipping(Numbers(10, bad=[3]), batch_size=None, shuffle=False) as loader:
        found = [(batch["id"].item(), batch.valid, batch.weight) for batch in loader]
    assert [entry[0] for entry in found] == [0, 1, 2, 0, 4, 5, 6, 7, 8, 9]
    assert found[3][1].tolist() == [False]
    assert [entry[2] for entry in found] == [1.0, 1.0, 1.0, 0.0, *[1.0] * 6]


def test_a_dataset_of_ones_own_that_raises():
    class Squares:
        def __len__(self):
            return 30

        def __getitem__(self, index):
            if index % 10 == 4:
                raise RuntimeError(f"cannot decode {index}")
            return torch.tensor(index), torch.tensor(index**2)

    for readers in (0, 2):
        with skipping(Squares(), shuffle=False, readers=readers, names=["x", "y"]) as loader:
            rows = [
                pair for b in loader for pair, ok in zip(
                    zip(b["x"].tolist(), b["y"].tolist(), strict=True),
                    [True] * b.size if b.valid is None else b.valid.tolist(), strict=True,
                ) if ok
            ]  # fmt: skip
            assert rows == [(index, index**2) for index in range(30) if index % 10 != 4]
            assert [sample for sample, _ in loader.skipped] == [4, 14, 24]
            assert "cannot decode 14" in dict(loader.skipped)[14]


def test_a_batch_sampler_with_steps_of_different_sizes():
    batches = [[0, 1, 2], [3], [40, 41], [5, 40, 6, 3, 7], [8]]
    found = []
    for way in WAYS[:4]:
        source = Numbers(N, bad=BAD)
        with Loader(source, batch_sampler=batches, on_error="skip", **way) as loader:
            found.append(run(loader))
    assert [batch[2] for batch in found[0]] == [
        [False, True, True], [False], [False, False], [True, False, True, False, True], None,
    ]  # fmt: skip
    for other in found[1:]:
        same(other, found[0])


def test_the_page_runs():
    text = (Path(__file__).resolve().parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")
    names = {}
    for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(code, "faults.md", "exec"), names)
    torn = frozenset({2, 17, 18, 19, *range(40, 48)})
    with skipping(Pictures(torn), shuffle=False) as loader:
        total = sum(names["mean_loss"](batch["label"].double() ** 2, batch) * 8 for batch in list(loader)[:-1])
    expected = sum(float(label) ** 2 for sample, label in enumerate(Pictures().labels[:88]) if sample not in torn)
    assert float(total) == pytest.approx(expected)
