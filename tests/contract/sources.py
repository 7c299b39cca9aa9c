"""What every source must hold, as a battery of tests. Run it on a source of your own::

    from tests.contract.sources import SourceContract

    class TestMySource(SourceContract):
        def make_source(self, folder):
            ...  # write a few files to folder, return the source; at least 5 samples
        def expected(self, source, index):
            ...  # the delivered fields of one sample, read in the plainest way you can think of

Sources that are :class:`flodl_pipe.sources.protocol.BundledSource` are held to that contract as well.
"""

import pickle
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.sources.protocol import BundledSource, Source
from tests.contract.forked import in_forked_child

LEAD = (3, 4)


def read_stored(source: Source, indices: Any) -> dict[str, Any]:
    """Return stored rows, in the order asked for."""
    wanted = np.asarray(indices, dtype=np.int64)
    out = source.spec.empty(len(wanted))
    source.read_into(wanted, np.arange(len(wanted)), out)
    return out


def read_delivered(source: Source, indices: Any) -> dict[str, Any]:
    """Return delivered rows, in the order asked for."""
    out = source.delivered.empty(len(indices))
    source.deliver(read_stored(source, indices), out)
    return out


def require_equal(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


class SourceContract:
    """Subclass it under a name that begins with ``Test`` and define the two methods below."""

    def make_source(self, folder: Path) -> Source:
        raise NotImplementedError

    def expected(self, source: Source, index: int) -> dict[str, Any]:
        raise NotImplementedError

    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        return self.make_source(tmp_path)

    @pytest.fixture
    def some(self, source: Source) -> Any:
        """Forty samples at random, the first and the last among them, with repeats."""
        picks = np.random.default_rng(0).integers(0, len(source), 40)
        picks[[3, 17]] = 0, len(source) - 1
        return picks

    def test_every_sample_equals_a_naive_read(self, source: Source) -> None:
        count = min(len(source), 200)
        found = read_delivered(source, np.arange(count))
        for index in range(count):
            require_equal({name: value[index] for name, value in found.items()}, self.expected(source, index))

    def test_random_access_with_repeats_equals_a_naive_read(self, source: Source, some: Any) -> None:
        found = read_delivered(source, some)
        for row, index in enumerate(some.tolist()):
            require_equal({name: value[row] for name, value in found.items()}, self.expected(source, index))

    def test_the_same_index_gives_the_same_bytes(self, source: Source, some: Any) -> None:
        first = read_stored(source, some)
        for _ in range(3):
            require_equal(read_stored(source, some), first)

    def test_arrays_have_the_types_and_shapes_of_the_specs(self, source: Source) -> None:
        found = read_delivered(source, [0])
        for field in source.delivered:
            value = self.expected(source, 0)[field.name]
            assert (found[field.name].dtype.name, found[field.name].shape[1:]) == (field.dtype, field.shape)
            assert np.shape(value) == field.shape

    def test_an_empty_request_reads_nothing(self, source: Source) -> None:
        none = np.empty(0, dtype=np.int64)
        source.read_into(none, none, source.spec.empty(0))
        out = {name: value.copy() for name, value in read_stored(source, [0]).items()}
        before = {name: value.copy() for name, value in out.items()}
        source.read_into(none, none, out)
        require_equal(out, before)

    def test_samples_go_to_the_rows_named_and_no_other_is_touched(self, source: Source, some: Any) -> None:
        rows = np.random.default_rng(1).permutation(100)[: len(some)]
        out = source.spec.empty(100)
        for value in out.values():
            value.reshape(-1).view(np.uint8)[:] = 0xA5
        source.read_into(some, rows, out)
        wanted = read_stored(source, some)
        for name, value in out.items():
            np.testing.assert_array_equal(value[rows], wanted[name])
            assert (np.delete(value, rows, axis=0).reshape(-1).view(np.uint8) == 0xA5).all()

    def test_samples_read_to_the_sources_own_buffers_are_the_same(self, source: Source) -> None:
        if not isinstance(source, BundledSource):
            pytest.skip("not over files")
        indices = np.random.default_rng(3).integers(0, len(source), 2_500)
        wanted = read_stored(source, indices)
        for rows in (np.arange(2_500), np.random.default_rng(4).permutation(2_500)):
            out = source.buffers(2_500)
            source.read_into(indices, rows, out)
            for name, value in out.items():
                np.testing.assert_array_equal(value[rows], wanted[name])

    def test_an_index_outside_the_source_is_an_error(self, source: Source) -> None:
        for index in (-1, len(source)):
            with pytest.raises(IndexError):
                read_stored(source, [0, index])

    def test_delivery_takes_any_leading_axes_and_strided_targets(self, source: Source) -> None:
        picks = np.random.default_rng(2).integers(0, len(source), LEAD)
        stored = {n: v.reshape(LEAD + v.shape[1:]) for n, v in read_stored(source, picks.reshape(-1)).items()}
        wide = {field.name: np.empty((*LEAD, 2, *field.shape), field.dtype) for field in source.delivered}
        out = {name: value[:, :, 1] for name, value in wide.items()}
        before = {name: value.copy() for name, value in stored.items()}
        source.deliver(stored, out)
        require_equal(stored, before)
        flat = read_delivered(source, picks.reshape(-1))
        require_equal({name: value.reshape(flat[name].shape) for name, value in out.items()}, flat)
        single: dict[str, Any] = {field.name: np.empty(field.shape, field.dtype) for field in source.delivered}
        source.deliver({name: value[1, 2] for name, value in stored.items()}, single)
        require_equal(single, {name: value[1, 2] for name, value in out.items()})

    def test_a_pickled_copy_is_small_and_reads_the_same(self, source: Source, some: Any) -> None:
        wanted = read_stored(source, some)
        text = pickle.dumps(source)
        assert len(text) < 10_000
        copy = pickle.loads(text)
        require_equal(read_stored(copy, some), wanted)
        assert copy.fingerprint() == source.fingerprint()

    def test_threads_read_at_once(self, source: Source) -> None:
        if not source.thread_safe:
            pytest.skip("the source says that it is not thread safe")
        wrong: list[object] = []

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            try:
                for _ in range(20):
                    picks = rng.integers(0, len(source), 30)
                    require_equal(read_stored(source, picks), {n: v[picks] for n, v in whole.items()})
            except BaseException as error:  # noqa: BLE001 - carried to the main thread
                wrong.append(error)

        whole = read_stored(source, np.arange(len(source)))
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # on purpose: that is what is tested
    def test_a_forked_child_reads_the_same(self, source: Source, some: Any) -> None:
        wanted = read_stored(source, some)
        require_equal(in_forked_child(read_stored, source, some), wanted)
        require_equal(read_stored(source, some), wanted)

    def test_the_fingerprint_is_stable_and_readable(self, source: Source, tmp_path_factory: Any) -> None:
        assert source.fingerprint() == source.fingerprint()
        assert source.fingerprint().summary
        assert source.fingerprint(full=True).full
        moved = self.make_source(tmp_path_factory.mktemp("moved"))
        assert (moved.fingerprint(), moved.fingerprint(full=True)) == (
            source.fingerprint(),
            source.fingerprint(full=True),
        )

    def test_a_file_source_describes_itself_and_opens_again_after_close(self, source: Source, some: Any) -> None:
        if not isinstance(source, BundledSource):
            pytest.skip("not a source over files")
        source.check_unchanged()
        facts = source.facts()
        assert facts
        assert all(fact.name and isinstance(fact.value, str) for fact in facts)
        wanted = read_stored(source, some)
        source.close()
        require_equal(read_stored(source, some), wanted)

    def test_extents_hold_the_stored_rows(self, source: Source, some: Any) -> None:
        if not isinstance(source, BundledSource) or source.extents is None:
            pytest.skip("samples are not runs of bytes")
        (field,) = source.spec
        extents = source.extents
        assert extents.row_bytes == source.spec.row_bytes
        joined = np.empty(extents.num_bytes, dtype=np.uint8)
        for start in range(0, extents.num_bytes, 1001):
            extents.read(start, joined[start : start + 1001])
        starts = extents.starts(some)
        rows = joined[starts[:, np.newaxis] + np.arange(extents.row_bytes)]
        np.testing.assert_array_equal(
            rows.view(field.dtype).reshape(len(some), *field.shape), read_stored(source, some)[field.name]
        )
        ordered = extents.starts(np.arange(len(source)))
        assert (np.diff(ordered) > 0).all()
        assert ordered[-1] + extents.row_bytes <= extents.num_bytes
