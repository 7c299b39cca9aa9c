"""What every transform must hold, as a battery of tests. Run it on a transform of your own::

    from tests.contract.transforms import TransformContract

    class TestMyTransform(TransformContract):
        def make_transform(self):
            ...  # return the transform; UserTransform(function) of a plain function
        def make_fields(self, num_rows):
            ...  # dense tensors by name, num_rows rows each; row i holds the same whatever num_rows is

Class attributes say what it promises: ``is_random`` (the keys decide), ``tolerance`` (of floating-point fields between
splits and devices; integers are always exact). Transforms that are
:class:`flodl_pipe.transforms.protocol.BundledTransform` are held to that contract as well.
"""

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import TransformError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.protocol import BundledTransform, Transform

Fields = Mapping[str, torch.Tensor]

NUM_ROWS = 13  # odd: the last row has no partner
# Cuts of the rows, an empty part among them.
ROW_CUTS = (0, 1, 6, 6, 13)
PAIR_CUTS = (0, 2, 2, 8, 13)


def make_keys(num_rows: int, *, epoch: int = 3, seed: int = 42, stream: int = 7) -> PickKeys:
    sample = np.arange(num_rows, dtype=np.int64) * 17 + 5
    return PickKeys(sample, np.arange(num_rows, dtype=np.int64) % 2, epoch, seed, stream)


def chosen_keys(keys: PickKeys, rows: Sequence[int]) -> PickKeys:
    index = np.array(rows, dtype=np.int64)
    return PickKeys(keys.sample[index], keys.repeat[index], keys.epoch, keys.seed, keys.stream)


def chosen(fields: Fields, rows: Sequence[int]) -> dict[str, torch.Tensor]:
    index = torch.tensor(rows, dtype=torch.int64)
    return {name: tensor[index] for name, tensor in fields.items()}


def applied(transform: Transform, fields: Fields, keys: PickKeys) -> dict[str, torch.Tensor]:
    """Return the fields that the transform makes; its input is a copy, which it may change."""
    tensors = tuple(tensor.clone() for tensor in fields.values())
    return dict(transform(Batch(tuple(fields), tensors, pick_keys=keys.of_stream(0)), keys).items())


def require_equal(found: Fields, wanted: Fields, tolerance: float = 0.0) -> None:
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        close = tolerance if tensor.is_floating_point() else 0.0
        torch.testing.assert_close(
            found[name], tensor, rtol=0.0, atol=close, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
        )


def differ(one: Fields, other: Fields) -> bool:
    return any(not torch.equal(tensor, other[name]) for name, tensor in one.items())


def spec_of(fields: Fields) -> SampleSpec:
    return SampleSpec(
        tuple(
            Field(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape[1:]))
            for name, tensor in fields.items()
        )
    )


class TransformContract:
    """Subclass it under a name that begins with ``Test`` and define the two methods below."""

    is_random: ClassVar[bool] = True
    tolerance: ClassVar[float] = 0.0

    def make_transform(self) -> Transform:
        raise NotImplementedError

    def make_fields(self, num_rows: int) -> dict[str, torch.Tensor]:
        raise NotImplementedError

    @pytest.fixture
    def transform(self) -> Transform:
        return self.make_transform()

    @pytest.fixture
    def bundled(self, transform: Transform) -> BundledTransform:
        if not isinstance(transform, BundledTransform):
            pytest.skip("says nothing beforehand")
        return transform

    @pytest.fixture
    def fields(self) -> dict[str, torch.Tensor]:
        return self.make_fields(NUM_ROWS)

    @pytest.fixture
    def whole(self, transform: Transform, fields: Fields) -> dict[str, torch.Tensor]:
        """What it makes of all rows at once."""
        return applied(transform, fields, make_keys(NUM_ROWS))

    def test_it_is_a_transform_of_a_known_scope(self, transform: Transform) -> None:
        assert isinstance(transform, Transform)
        assert transform.scope in ("row", "pair", "batch")

    def test_any_split_gives_the_same_rows(self, transform: Transform, fields: Fields, whole: Fields) -> None:
        if transform.scope == "batch":
            pytest.skip("looks at the whole batch")
        keys = make_keys(NUM_ROWS)
        cuts = ROW_CUTS if transform.scope == "row" else PAIR_CUTS
        parts = []
        for start, stop in pairwise(cuts):
            rows = list(range(start, stop))
            parts.append(applied(transform, chosen(fields, rows), chosen_keys(keys, rows)))
        joined = {name: torch.cat([part[name] for part in parts]) for name in whole}
        require_equal(joined, whole, self.tolerance)

    def test_the_place_in_the_batch_has_no_say(self, transform: Transform, fields: Fields, whole: Fields) -> None:
        if transform.scope == "batch":
            pytest.skip("looks at the whole batch")
        if transform.scope == "row":
            rows = np.random.default_rng(0).permutation(NUM_ROWS).tolist()
        else:  # pairs stay together and at even places
            pairs = np.random.default_rng(0).permutation(NUM_ROWS // 2).tolist()
            rows = [row for pair in pairs for row in (2 * pair, 2 * pair + 1)] + [NUM_ROWS - 1]
        moved = applied(transform, chosen(fields, rows), chosen_keys(make_keys(NUM_ROWS), rows))
        require_equal(moved, chosen(whole, rows), self.tolerance)

    def test_the_same_keys_give_the_same_rows(self, transform: Transform, fields: Fields, whole: Fields) -> None:
        for again in (transform, self.make_transform()):
            require_equal(applied(again, fields, make_keys(NUM_ROWS)), whole)

    def test_each_part_of_the_keys_counts(self, transform: Transform, fields: Fields, whole: Fields) -> None:
        counts = {}
        for part in ("sample", "repeat", "epoch", "seed", "stream"):
            keys = make_keys(NUM_ROWS)
            setattr(keys, part, getattr(keys, part) + 1)
            counts[part] = differ(applied(transform, fields, keys), whole)
        assert counts == dict.fromkeys(counts, self.is_random)

    def test_global_random_states_are_neither_used_nor_changed(
        self, transform: Transform, fields: Fields, whole: Fields
    ) -> None:
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        try:
            random.seed(1)
            np.random.seed(1)  # noqa: NPY002
            torch.manual_seed(1)
            before = random.getstate(), repr(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002
            found = applied(transform, fields, make_keys(NUM_ROWS))
            after = random.getstate(), repr(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
            torch.set_rng_state(states[2])
        assert before[:2] == after[:2]
        assert torch.equal(before[2], after[2])
        require_equal(found, whole)

    def test_the_number_of_rows_and_the_device_stay(self, transform: Transform) -> None:
        for num_rows in (0, 1, 2, 3, NUM_ROWS):
            found = applied(transform, self.make_fields(num_rows), make_keys(num_rows))
            assert {name: (len(tensor), tensor.device.type) for name, tensor in found.items()} == dict.fromkeys(
                found, (num_rows, "cpu")
            )

    def test_what_a_batch_says_of_its_rows_stays(self, transform: Transform, fields: Fields) -> None:
        keys = make_keys(NUM_ROWS)
        valid = torch.arange(NUM_ROWS) != 4
        tensors = tuple(tensor.clone() for tensor in fields.values())
        batch = Batch(tuple(fields), tensors, pick_keys=keys, weight=0.75, valid=valid.clone())
        found = transform(batch, keys)
        assert (found.weight, found.pick_keys, found.cursor) == (0.75, keys, None)
        assert found.valid is not None
        assert torch.equal(found.valid, valid)

    def test_no_two_fields_share_memory(self, transform: Transform, fields: Fields, whole: Fields) -> None:
        storages = [tensor.untyped_storage().data_ptr() for tensor in whole.values()]
        assert len(set(storages)) == len(storages)

    def test_how_the_rows_lie_in_memory_has_no_say(self, transform: Transform, fields: Fields, whole: Fields) -> None:
        strided = {name: torch.stack([tensor, tensor], dim=-1)[..., 0] for name, tensor in fields.items()}
        batch = Batch(tuple(strided), tuple(strided.values()), pick_keys=make_keys(NUM_ROWS))
        require_equal(dict(transform(batch, make_keys(NUM_ROWS)).items()), whole, self.tolerance)

    def test_several_threads_may_call_it_at_once(self, transform: Transform, fields: Fields, whole: Fields) -> None:
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(applied, transform, fields, make_keys(NUM_ROWS)) for _ in range(12)]
        for call in calls:
            require_equal(call.result(), whole)

    def test_an_accelerator_gives_what_the_cpu_gives(self, transform: Transform, fields: Fields, whole: Fields) -> None:
        if not torch.accelerator.is_available():
            pytest.skip("no accelerator here")
        moved = {name: tensor.to(torch.accelerator.current_accelerator()) for name, tensor in fields.items()}
        found = applied(transform, moved, make_keys(NUM_ROWS))
        require_equal({name: tensor.cpu() for name, tensor in found.items()}, whole, self.tolerance)

    def test_it_makes_the_fields_that_it_announces(
        self, bundled: BundledTransform, fields: Fields, whole: Fields
    ) -> None:
        assert bundled.output(spec_of(fields)) == spec_of(whole)
        none = applied(bundled, self.make_fields(0), make_keys(0))
        assert bundled.output(spec_of(fields)) == spec_of(none)

    def test_fields_that_it_does_not_know_pass_through(
        self, bundled: BundledTransform, fields: Fields, whole: Fields
    ) -> None:
        more = {"before": torch.arange(NUM_ROWS), **fields, "behind": torch.rand(NUM_ROWS, 2)}
        found = applied(bundled, more, make_keys(NUM_ROWS))
        assert list(bundled.output(spec_of(more)).names) == list(found)
        require_equal(
            {name: found[name] for name in ("before", "behind")}, {name: more[name] for name in ("before", "behind")}
        )
        require_equal({name: found[name] for name in whole}, whole)

    def test_a_batch_without_its_fields_is_refused(self, bundled: BundledTransform, fields: Fields) -> None:
        others = {f"other_{name}": tensor for name, tensor in fields.items()}
        with pytest.raises(TransformError, match="other_"):
            bundled.output(spec_of(others))
        with pytest.raises(TransformError, match="other_"):
            applied(bundled, others, make_keys(NUM_ROWS))

    def test_rows_of_another_kind_are_refused(self, bundled: BundledTransform, fields: Fields) -> None:
        odd = {name: torch.zeros((NUM_ROWS, 2, 2, 2, 2), dtype=torch.complex64) for name in fields}
        with pytest.raises(TransformError):
            bundled.output(spec_of(odd))
        with pytest.raises(TransformError):
            applied(bundled, odd, make_keys(NUM_ROWS))

    def test_its_tag_says_what_it_is(self, bundled: BundledTransform) -> None:
        again = self.make_transform()
        assert isinstance(again, BundledTransform)
        assert bundled.tag == again.tag
        assert bundled.tag.partition("(")[0].isidentifier()
        assert "0x" not in bundled.tag, "an address is no constant"
