"""Loaders of documents: padded or nested, the same rows and one digest for any ranks and readers, resumed anywhere."""

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from flodl_pipe import Loader
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ConfigError, SourceError, TransformError
from flodl_pipe.keyed.digest import Digest
from flodl_pipe.sources.text_stream import TextStream

TINY = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "tinyshakespeare_input.txt"
NUM_FILES = 4
LINES = [f"line {number} " + "word " * (number * 7 % 13) for number in range(90)]
# Torch imports sympy for its first nested tensor, which warns where another part of torch was loaded before.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def ids_of(text):
    return [*text.encode(), 256]


@pytest.fixture
def folder(tmp_path):
    for number in range(NUM_FILES):
        lines = LINES[number::NUM_FILES]
        if number == 1:
            (tmp_path / "1.txt.gz").write_bytes(gzip.compress("\r\n\n".join(lines).encode(), mtime=0))
        elif number == 2:
            rows = [json.dumps({"text": line}) for line in lines]
            (tmp_path / "2.jsonl").write_text("\n".join(rows))
        else:
            (tmp_path / f"{number}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def loader(folder, **options):
    stream = {key: options.pop(key) for key in ("max_length", "lanes", "shuffle_buffer") if key in options}
    stream = TextStream.open(str(folder), rows="documents", **{"max_length": 100, "shuffle_buffer": 40, **stream})
    return Loader(stream, **{"batch_size": 8, "drop_last": False, "keep_digest": True, "collate": "pad", **options})


def rows_of(batch):
    """Return the rows of a padded or nested batch as lists, having looked at mask and padding."""
    ids = batch["input_ids"]
    assert ids.dtype == torch.int64
    if ids.is_nested:
        assert batch.names == ("input_ids",)
        return [row.tolist() for row in ids.unbind()]
    mask = batch["attention_mask"]
    assert batch.names == ("input_ids", "attention_mask")
    assert ids.shape == mask.shape
    assert ids.shape[1] % 8 == 0
    lengths = mask.sum(1)
    assert ids.shape[1] - lengths.max() < 8
    assert (mask == (torch.arange(ids.shape[1]) < lengths[:, None])).all()
    assert (ids[mask == 0] == 0).all()
    return [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]


def rows(batches):
    return list(itertools.chain.from_iterable(map(rows_of, batches)))


@pytest.mark.parametrize("collate", ["pad", "ragged"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_line_comes_once_and_whole(folder, collate, shuffle):
    with loader(folder, collate=collate, shuffle=shuffle) as source:
        first, second = rows(source.epoch(0)), rows(source.epoch(1))
    assert sorted(first) == sorted(second) == sorted(map(ids_of, LINES))
    assert (first != second) == shuffle


@pytest.mark.skipif(not TINY.exists(), reason=f"{TINY} is not there")
def test_the_lines_of_a_real_text(tmp_path):
    wanted = [[*line, 256] for line in TINY.read_bytes().split(b"\n") if line]
    with loader(TINY, shuffle=False, batch_size=500, max_length=max(map(len, wanted)), shuffle_buffer=1000) as source:
        assert rows(source) == wanted
        assert source.statistics().num_samples == len(wanted)


def test_lines_pass_through_one_by_one_where_there_is_no_batch_size(folder):
    with loader(folder, batch_size=None, collate="stack") as source:
        samples = [batch["input_ids"].tolist() for batch in source]
    assert sorted(samples) == sorted(map(ids_of, LINES))


def digest_of(found):
    total = Digest.from_hex(found[0].digest, found[0].num_samples)
    for one in found[1:]:
        total.merge(Digest.from_hex(one.digest, one.num_samples))
    return total.hex()


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_stream_and_its_digest_do_not_depend_on_readers_ranks_or_collation(folder, shuffle):
    with loader(folder, shuffle=shuffle) as source:
        wanted = [rows_of(batch) for batch in source]
        digest = source.statistics().digest
    assert len(wanted) == 12
    for options in ({"readers": 0}, {"readers": 1, "prefetch": 1}, {"collate": "ragged"}, {"pad_length": 104}):
        with loader(folder, shuffle=shuffle, **options) as source:
            batches = list(source)
            assert source.statistics().digest == digest
        if "pad_length" in options:
            assert {batch["input_ids"].shape[1] for batch in batches} == {104}
        else:
            assert [rows_of(batch) for batch in batches] == wanted
    for world_size in (2, 4):
        ranks, found = [], []
        for rank in range(world_size):
            context = RunContext(rank, world_size)
            with loader(folder, shuffle=shuffle, context=context, batch_size=8 // world_size) as source:
                ranks.append([rows_of(batch) if batch.weight else [] for batch in source])
                found.append(source.statistics())
        assert [sum(parts, []) for parts in zip(*ranks, strict=True)] == wanted
        assert digest_of(found) == digest


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("world_size", [1, 2])
def test_every_batch_can_be_resumed_from_on_any_ranks_and_readers(folder, shuffle, world_size):
    with loader(folder, shuffle=shuffle) as source:
        batches = list(source)
        digest = source.statistics().digest
    wanted = [rows_of(batch) for batch in batches]
    for step in range(len(batches)):
        state, ranks = json.loads(json.dumps(batches[step].cursor)), []
        for rank in range(world_size):
            context, readers = RunContext(rank, world_size), step % 2
            with loader(
                folder, shuffle=shuffle, context=context, batch_size=8 // world_size, readers=readers
            ) as source:
                source.load_state_dict(state)
                ranks.append([rows_of(batch) if batch.weight else [] for batch in source.epoch(0)])
        assert [sum(parts, []) for parts in zip(*ranks, strict=True)] == wanted[step + 1 :]
    head, tail = loader(folder, shuffle=shuffle), loader(folder, shuffle=shuffle)
    with head, tail:
        for batch in itertools.islice(head, 5):
            state = batch.cursor
        tail.load_state_dict(state)
        assert rows(tail) == sum(wanted[5:], [])
        assert digest_of([head.statistics(), tail.statistics()]) == digest


def test_a_batch_of_a_resumed_run_has_the_cursor_of_the_whole_run(folder):
    with loader(folder) as source:
        cursors = [batch.cursor for batch in source]
    for step in (0, 4, 9):
        with loader(folder) as source:
            source.load_state_dict(cursors[step])
            assert [batch.cursor for batch in source.epoch(0)] == cursors[step + 1 :]


def test_names_and_transforms_of_a_padded_batch(folder):
    def double(batch, _keys):
        return batch.with_fields(("ids", "doubled"), (batch["ids"], batch["ids"] * 2))

    with loader(folder, names=["ids"], transforms=double) as source:
        batch = next(iter(source))
    assert (batch["doubled"] == 2 * batch["ids"]).all()
    with loader(folder, names=["labels"], collate="pad") as source:
        assert (next(iter(source))["labels"] == -100).any()


def test_stacking_documents_is_refused_before_anything_is_read(folder):
    for options in ({"collate": "stack"}, {"collate": "stack", "batch_size": 1}):
        with pytest.raises(ConfigError, match=r"loader\.collate.*'input_ids'.*pad"):
            loader(folder, **options)


def test_a_line_that_is_too_long_is_an_error_at_its_step(folder):
    with loader(folder, max_length=60, shuffle=False, batch_size=4, lanes=1, pad_multiple=8) as source:
        batches = iter(source)
        with pytest.raises(
            SourceError, match=r"0\.txt, line \d+ \(byte \d+\): the document has \d\d tokens.*max_length"
        ):
            rows(batches)


def test_a_padded_length_below_a_row_is_an_error(folder):
    with (
        loader(folder, pad_length=16) as source,
        pytest.raises(TransformError, match=r"row .* has length .*pad_length is 16, and rows are never cut"),
    ):
        list(source)


def test_batches_own_their_tensors(folder):
    with loader(folder, shuffle=False) as source:
        batches = list(source)
        wanted = [rows_of(batch) for batch in batches]
        for batch in batches:
            batch["input_ids"].fill_(7)
        assert [rows_of(batch) for batch in source] == wanted
    assert np.unique([batch["input_ids"].data_ptr() for batch in batches]).size == len(batches)
