"""Iterables whose samples have different lengths: stored with one size, delivered as they came, never cut."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flodl_pipe import Loader
from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ConfigError, LoaderError, SourceError
from flodl_pipe.sources.iterable_stream import IterableStream
from tests.contract.streams import StreamContract, read_lane

LENGTHS = (41, 16, 30)
M = 9
# Torch imports sympy for its first nested tensor, which warns where another part of torch was loaded before.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def sample(shard: int, number: int) -> dict[str, Any]:
    """A ragged field, one of rows, and one of fixed shape; some of length 0."""
    count = (3 * shard + 5 * number) % (M + 1)
    return {
        "ids": torch.arange(number, number + count, dtype=torch.int32),
        "boxes": np.full((count // 2, 4), number + 100 * shard, dtype=np.float32),
        "label": 1000 * shard + number,
    }


class Shard:
    def __init__(self, shard: int, length: int) -> None:
        self.shard, self.length = shard, length

    def __iter__(self) -> Any:
        return (sample(self.shard, number) for number in range(self.length))


def ragged(**options: Any) -> IterableStream:
    shards = [Shard(shard, length) for shard, length in enumerate(LENGTHS)]
    return IterableStream(shards, **{"shuffle_buffer": 21, "max_length": {"ids": M, "boxes": 5}, **options})


class TestRaggedIterables(StreamContract):
    def make_stream(self, folder: Path) -> IterableStream:
        return ragged()

    def expected(self, stream: Any, lane: int, **which: Any) -> dict[str, Any]:
        count = LENGTHS[lane]
        rows: dict[str, Any] = {
            "ids": np.zeros((count, M), np.int32),
            "ids.length": np.zeros(count, np.int64),
            "boxes": np.zeros((count, 5, 4), np.float32),
            "boxes.length": np.zeros(count, np.int64),
            "label": np.zeros(count, np.int64),
        }
        for number in range(count):
            for name, value in sample(lane, number).items():
                if name == "label":
                    rows[name][number] = value
                else:
                    rows[name][number, : len(value)] = value
                    rows[f"{name}.length"][number] = len(value)
        return rows


def test_rows_come_back_as_they_were() -> None:
    stream = ragged()
    columns = stream.deliver_rows(read_lane(stream, 1, shuffle=False))
    assert list(columns) == ["ids", "boxes", "label"]
    for number in range(LENGTHS[1]):
        wanted = sample(1, number)
        for name in ("ids", "boxes"):
            column = columns[name]
            assert isinstance(column, Ragged)
            np.testing.assert_array_equal(column.row(number), wanted[name])
        assert columns["label"][number] == wanted["label"]  # type: ignore[index]


def loader(stream: IterableStream, **options: Any) -> Loader:
    return Loader(stream, **{"batch_size": 6, "drop_last": False, "collate": "pad", "keep_digest": True, **options})


def look(batch: Any) -> list[int]:
    """Hold every row of a padded batch against its sample; return their labels."""
    for row, label in enumerate(batch["label"].tolist()):
        wanted = sample(label // 1000, label % 1000)
        for name, mask in (("ids", "attention_mask"), ("boxes", "boxes_mask")):
            count = int(batch[mask][row].sum())
            assert torch.equal(batch[name][row, :count], torch.as_tensor(wanted[name]))
            assert not batch[name][row, count:].any()
    labels: list[int] = batch["label"].tolist()
    return labels


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_loader_pads_them_the_same_on_any_ranks_and_resumed_anywhere(shuffle: bool) -> None:
    with loader(ragged(), shuffle=shuffle) as source:
        batches = list(source)
        digest = source.statistics().digest
    wanted = [look(batch) for batch in batches]
    assert sorted(sum(wanted, [])) == sorted(sample(s, n)["label"] for s, k in enumerate(LENGTHS) for n in range(k))
    with loader(ragged(), shuffle=shuffle, collate="ragged", readers=0) as source:
        nested = [batch["ids"].unbind() for batch in source]
        assert source.statistics().digest == digest
    for rows, batch in zip(nested, batches, strict=True):
        assert [len(row) for row in rows] == batch["attention_mask"].sum(1).tolist()
    for step in (0, 3, 8):
        state, ranks = json.loads(json.dumps(batches[step].cursor)), []
        for rank in range(3):
            with loader(ragged(), shuffle=shuffle, context=RunContext(rank, 3), batch_size=2) as source:
                source.load_state_dict(state)
                ranks.append([look(batch) if batch.weight else [] for batch in source.epoch(0)])
        assert [sum(parts, []) for parts in zip(*ranks, strict=True)] == wanted[step + 1 :]


def test_stacking_them_is_refused_before_anything_is_read() -> None:
    with pytest.raises(ConfigError, match=r"loader\.collate.*'ids'.*pad"):
        loader(ragged(), collate="stack")


@pytest.mark.parametrize(
    ("samples", "max_length", "says"),
    [
        ([[1, 2], [3]], {}, r"sample 1 of list, field '0' has shape \(1,\).*\(2,\).*max_length=\{'0': \.\.\.\}"),
        ([[1, 2], [3, 4, 5]], {"0": 2}, r"sample 1 of list, field '0' has length 3, and max_length is 2: no sample is"),
        (
            [[1, 2], [[3, 4]]],
            {"0": 2},
            r"has shape \(1, 2\), but sample 0 has \(\*\); .*only the first axis may differ",
        ),
        ([[1, 2], 3], {"0": 2}, r"has shape \(\), but sample 0 has \(\*\)"),
        ([[1, 2], [0.5]], {"0": 2}, r"is float64, but sample 0 has int64"),
    ],
)
def test_a_sample_that_does_not_fit_is_named(samples: Any, max_length: Any, says: str) -> None:
    stream = IterableStream([[np.array(one) for one in samples]], max_length=max_length)
    with pytest.raises(SourceError, match=says):
        read_lane(stream, 0, shuffle=False)


@pytest.mark.parametrize(
    ("max_length", "says"),
    [
        ({"id": 3}, r"max_length names 'id', but the fields of list are ids, label"),
        ({"label": 3}, r"a single number there, which has no length"),
        ({"ids": 0}, r"max_length of 'ids' must be an integer of at least 1, got 0"),
        ({"ids": True}, r"must be an integer"),
        (7, r"max_length must name fields .* got 7"),
    ],
)
def test_a_length_that_says_nothing_is_refused(max_length: Any, says: str) -> None:
    with pytest.raises(LoaderError, match=says):
        IterableStream([[{"ids": np.arange(3), "label": 1}]], max_length=max_length)
    with pytest.raises(LoaderError, match="rename it"):
        IterableStream([[{"ids": np.arange(3), "ids.length": 1}]], max_length={"ids": 3})


def test_an_empty_field_is_one_only_where_it_is_ragged() -> None:
    first = {"ids": np.arange(0), "mask": np.arange(0)}
    with pytest.raises(SourceError, match=r"field 'mask' holds no values.*max_length=\{'mask': \.\.\.\}"):
        IterableStream([[first]], max_length={"ids": 3})
    stream = IterableStream([[first, {"ids": np.arange(2), "mask": np.arange(1)}]], max_length={"ids": 3, "mask": 1})
    with loader(stream, shuffle=False, batch_size=2) as source:
        (batch,) = source
    assert batch["attention_mask"].sum(1).tolist() == [0, 2]


def test_plan_tells_which_fields_are_ragged() -> None:
    facts = {fact.name: fact.value for fact in ragged().facts()}
    assert facts["fields"] == "ids int32 (*), boxes float32 (*, 4), label int64 ()"
    assert facts["longest samples"] == "ids at most 9, boxes at most 5; a longer one is an error"


def test_an_iterator_serves_one_epoch_here_too() -> None:
    samples = (torch.arange(n % 4) for n in range(20))
    with loader(IterableStream([samples], max_length={"0": 3}), shuffle=False) as source:
        lengths = list(itertools.chain.from_iterable(batch["attention_mask"].sum(1).tolist() for batch in source))
        assert lengths == [n % 4 for n in range(20)]
        with pytest.raises(SourceError, match="gives its samples once"):
            list(source)
