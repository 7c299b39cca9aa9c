"""Reader processes give what the source gives, use all processes, and pass on what goes wrong.

White box: how long a sample takes is set, not measured, where it decides into how many tasks a read is cut.
"""

import os
import threading

import numpy as np
import pytest
import torch

from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.errors import LoaderError, SourceError
from flodl_pipe.loader.process_readers import ProcessReaders
from flodl_pipe.sources.adapters import adapt
from tests.loader import process_sources as datasets
from tests.loader.waiting import joined, until

FAST = "forkserver"


@pytest.fixture
def start():
    """Make reader processes that are closed in the end."""
    made = []

    def make(source, num_processes=2, how=FAST, max_rows=64):
        readers = ProcessReaders(source, num_processes=num_processes, start=how, max_rows=max_rows)
        made.append(readers)
        return readers

    yield make
    for readers in made:
        readers.close()


def read(reader, spec, indices):
    """Return samples in the order asked for, read to rows in another."""
    wanted = np.asarray(indices, dtype=np.int64)
    rows = np.random.default_rng(0).permutation(len(wanted) + 3)[: len(wanted)]
    out = {name: np.zeros_like(array) for name, array in spec.empty(len(wanted) + 3).items()}
    reader.read_into(wanted, rows, out)
    return {name: array[rows] for name, array in out.items()}


def require_same(found, wanted):
    assert list(found) == list(wanted)
    for name, rows in wanted.items():
        if isinstance(rows, Ragged):
            np.testing.assert_array_equal(found[name].offsets, rows.offsets)
            np.testing.assert_array_equal(found[name].values, rows.values)
        else:
            np.testing.assert_array_equal(found[name], rows, strict=True)


@pytest.mark.parametrize("kind", [datasets.Rows, datasets.Items, datasets.Batches, datasets.Dataclasses])
def test_rows_are_those_of_the_source_whatever_is_asked_for(kind, start):
    source = adapt(kind())
    readers = start(source, num_processes=3)
    for indices in ([5], [], [7, 7, 7, 0], range(64), range(999, 0, -1)):
        require_same(read(readers, source.spec, indices), read(source, source.spec, indices))


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("spawn", marks=pytest.mark.full),
        pytest.param("fork", marks=pytest.mark.filterwarnings("ignore:.*fork")),
    ],
)
def test_the_ways_to_start_give_the_same(how, start):
    source = adapt(datasets.Rows())
    require_same(read(start(source, how=how), source.spec, range(200)), read(source, source.spec, range(200)))


def test_a_fork_is_made_aloud_and_pickles_nothing(start, caplog):
    held = threading.Lock()

    class Local(datasets.Rows):
        lock = held
        make = staticmethod(lambda index: index)

    source = adapt(Local())
    require_same(read(start(source, how="fork"), source.spec, range(9)), read(source, source.spec, range(9)))
    assert "without its threads" in caplog.text


@pytest.mark.parametrize("num_processes", [1, 3])
def test_ragged_rows_are_those_of_the_source(num_processes, start):
    source = adapt(datasets.Ragged(), ragged=["values"])
    readers = start(source, num_processes=num_processes)
    for indices in ([5], [4, 4, 8], list(range(500))):
        require_same(
            readers.read_rows(np.array(indices, dtype=np.int64)), source.read_rows(np.array(indices, dtype=np.int64))
        )


def test_any_source_can_be_read(start):
    source = datasets.Squares()
    require_same(read(start(source), source.spec, range(40)), read(source, source.spec, range(40)))


def test_many_threads_get_what_they_asked_for(start):
    source = adapt(datasets.Rows(busy_us=50))
    readers = start(source, num_processes=2, max_rows=32)
    wanted = [np.random.default_rng(number).integers(0, 1000, 37) for number in range(60)]
    found = [None] * len(wanted)

    def work(first):
        for number in range(first, len(wanted), 6):
            found[number] = read(readers, source.spec, wanted[number])

    threads = [threading.Thread(target=work, args=(first,)) for first in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined(thread)
    for indices, rows in zip(wanted, found, strict=True):
        require_same(rows, read(source, source.spec, indices))


def test_one_large_read_keeps_every_process_busy(start):
    readers = start(adapt(datasets.Where()), num_processes=3)
    spec = adapt(datasets.Where()).spec
    found = read(readers, spec, range(1, 61))  # before it is known how long a sample takes
    pids, counts = np.unique(found["0"], return_counts=True)
    assert set(pids.tolist()) == set(readers.pids)
    assert os.getpid() not in pids
    assert counts.tolist() == [20, 20, 20]
    readers._row_s = 2e-3
    found = read(readers, spec, range(1, 61))
    assert set(found["0"].tolist()) == set(readers.pids)
    assert (found["1"] == 1).all()


def test_quick_samples_are_not_spread_thin(start):
    readers = start(adapt(datasets.Where()), num_processes=3)
    readers._row_s = 1e-5
    found = read(readers, adapt(datasets.Where()).spec, range(1, 13))
    assert len(np.unique(found["0"])) == 1


def test_large_rows_come_in_turns(start):
    source = adapt(np.zeros((8, 3 << 20), dtype=np.uint8))
    readers = start(source, num_processes=1, max_rows=8)
    assert readers.num_bytes < 100 << 20
    require_same(read(readers, source.spec, range(8)), read(source, source.spec, range(8)))


def test_what_a_dataset_holds_goes_along_and_stays_where_it_is(start):
    held = datasets.Held()
    where = held.tensor.data_ptr()
    source = adapt(held)
    readers = start(source)
    before = held.seen.copy()
    require_same(read(readers, source.spec, range(64)), read(source, source.spec, range(64)))
    assert not held.tensor.is_shared()
    assert held.tensor.data_ptr() == where
    assert (held.seen - before == 1).all()  # by our own read: a process changes its own copy
    assert readers.num_bytes > held.array.nbytes


def test_an_error_is_the_datasets_own_with_the_traceback_of_the_process(start):
    readers = start(adapt(datasets.Faulty()))
    spec = adapt(datasets.Faulty()).spec
    with pytest.raises(KeyError) as caught:
        read(readers, spec, range(90, 110 - 8))
    assert caught.value.args == ("label",)
    notes = "\n".join(caught.value.__notes__)
    assert "while reading sample 101 of tests.loader.process_sources.Faulty" in notes
    assert f"in reader process {readers.pids[0]}" in notes or f"in reader process {readers.pids[1]}" in notes
    assert "process_sources.py" in notes
    require_same(read(readers, spec, range(90)), read(adapt(datasets.Rows()), spec, range(90)))  # and it goes on


@pytest.mark.parametrize(
    ("index", "kind", "text"),
    [
        (102, SourceError, r"^tests.loader.process_sources.OddError: out of order \(7\)"),
        (103, SystemExit, "enough"),
        (107, SourceError, "the dataset raised StopIteration"),
    ],
)
def test_an_error_that_does_not_pickle_keeps_its_text(index, kind, text, start):
    readers = start(adapt(datasets.Faulty()))
    with pytest.raises(kind, match=text) as caught:
        read(readers, adapt(datasets.Faulty()).spec, [3, index])
    assert "process_sources.py" in "\n".join(caught.value.__notes__)


def test_of_several_errors_the_first_in_order_is_raised(start):
    readers = start(adapt(datasets.Faulty()), num_processes=3)
    for _ in range(3):
        with pytest.raises(SourceError, match="OddError"):
            read(readers, adapt(datasets.Faulty()).spec, [102, *range(40), 101, *range(40), 107])


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (104, "it ended with status 3, while nobody had told it to"),
        (105, "SIGSEGV; native code"),
        (108, "SIGKILL; someone killed it"),
    ],
)
def test_a_process_that_dies_is_an_error_and_the_next_pass_starts_others(index, text, start):
    source = adapt(datasets.Faulty())
    readers = start(source)
    read(readers, source.spec, range(4))
    pids = readers.pids
    with pytest.raises(LoaderError, match=rf"reader process ({pids[0]}|{pids[1]}) died: {text}"):
        read(readers, source.spec, [1, 2, index])
    with pytest.raises(LoaderError, match="died"):
        read(readers, source.spec, [1])
    readers.begin()
    assert not set(readers.pids) & set(pids)
    require_same(read(readers, source.spec, range(9)), read(source, source.spec, range(9)))


def test_a_read_that_never_ends_can_be_interrupted(start, tmp_path):
    told = tmp_path / "told"
    source = adapt(datasets.Faulty(told=told))
    readers = start(source)
    read(readers, source.spec, range(4))
    caught = []

    def stuck():
        try:
            read(readers, source.spec, [datasets.STUCK])
        except LoaderError as error:
            caught.append(str(error))

    thread = threading.Thread(target=stuck)
    thread.start()
    until(told.exists, "a reader process that is stuck")
    readers.interrupt()
    joined(thread)
    assert "interrupted" in caught[0]
    readers.begin()
    require_same(read(readers, source.spec, range(9)), read(source, source.spec, range(9)))


def test_samples_out_of_range_are_refused(start):
    readers = start(adapt(datasets.Rows(10)))
    with pytest.raises(IndexError, match="are not all in 0"):
        read(readers, adapt(datasets.Rows(10)).spec, [3, 10])


def test_torchs_threads_here_stay_as_they_are(start):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        read(start(adapt(datasets.Rows())), adapt(datasets.Rows()).spec, range(3))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_number_of_nothing_is_refused():
    for numbers in ({"num_processes": 0, "max_rows": 1}, {"num_processes": 1, "max_rows": 0}):
        with pytest.raises(ValueError, match="at least"):
            ProcessReaders(adapt(datasets.Rows()), start=FAST, **numbers)
