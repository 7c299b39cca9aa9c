"""Windows at random starts: every start is a sample, the bytes are shared, and an epoch is about one pass."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from flodl_pipe.errors import ConfigError
from flodl_pipe.sources.ordering import Drawn
from tests.contract.sources import read_delivered, read_stored
from tests.sources.test_tokens import TokenContract, facts, open_one, write_shards


@pytest.mark.full
class TestRandomStarts(TokenContract):
    stride = 1
    options: ClassVar[dict[str, Any]] = {"starts": "random"}


def test_every_possible_start_is_a_sample(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, "uint16", counts=(100, 16, 17, 40))
    source = open_one(tmp_path, starts="random")
    assert source.windows_per_shard.tolist() == [84, 0, 1, 24]
    starts = [run[at : at + 17] for run in shards for at in range(len(run) - 16)]
    np.testing.assert_array_equal(read_stored(source, np.arange(len(source)))["tokens"], starts)


def test_an_epoch_draws_as_many_as_there_are_windows_side_by_side(tmp_path: Path) -> None:
    write_shards(tmp_path, "uint16", counts=(100, 16, 17, 40))
    source = open_one(tmp_path, starts="random")
    assert source.ordering == Drawn(len(open_one(tmp_path)))
    assert open_one(tmp_path).ordering is None
    told = facts(source)
    assert told["possible starts"] == "109, for windows of 16 tokens"
    assert told["draws an epoch"] == "9, with replacement: about one pass"
    assert told["tail tokens in no window"] == "16", "those of the shard that is too short"
    assert "windows" not in told


def test_windows_share_their_bytes(tmp_path: Path) -> None:
    write_shards(tmp_path, "uint16", counts=(1000,))
    source = open_one(tmp_path, starts="random")
    assert source.extents is not None
    assert source.extents.num_bytes == 2000
    assert source.extents.starts(np.array([0, 1, 983])).tolist() == [0, 2, 1966]


def test_starts_change_the_identity_by_a_tag_only(tmp_path: Path) -> None:
    write_shards(tmp_path, "uint16", counts=(1000,))
    drawn, walked = open_one(tmp_path, starts="random"), open_one(tmp_path, stride=1)
    assert drawn.fingerprint().summary == f"{walked.fingerprint().summary}, random starts"
    assert drawn.fingerprint().digest != walked.fingerprint().digest
    picks = np.array([5, 900])
    np.testing.assert_array_equal(read_delivered(drawn, picks)["target"], read_delivered(walked, picks)["target"])


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"stride": 16}, "source.stride", "must be unset when starts is random, got 16"),
        ({"tail": "keep"}, "source.tail", "must be drop when starts is random, got keep"),
        ({"starts": "anywhere"}, "source.starts", "must be stride or random, got 'anywhere'"),
    ],
)
def test_what_random_starts_have_no_use_for_is_refused(
    tmp_path: Path, options: dict[str, Any], key: str, message: str
) -> None:
    write_shards(tmp_path, "uint16")
    with pytest.raises(ConfigError, match=message) as caught:
        open_one(tmp_path, **{"starts": "random", **options})
    assert caught.value.problems[0].key == key
