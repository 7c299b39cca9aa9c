"""Which batch a forward pass works on, told by what its inputs are."""

import numpy as np
import pytest
import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.errors import LoaderError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.loader.delivered import Delivered


def batch_of(rows, weight):
    keys = PickKeys(np.arange(rows), np.zeros(rows, dtype=np.int64), 0, 0)
    return Batch(("x",), (torch.rand(rows, 3),), pick_keys=keys, weight=weight)


def handed(delivered, *batches):
    for batch in batches:
        delivered.note(batch, batch.size)


def test_tensors_of_a_batch_tell_it_however_far_ahead_the_loop_is():
    delivered = Delivered()
    batches = [batch_of(4, 1.0 + place) for place in range(5)]
    handed(delivered, *batches)
    for batch in reversed(batches):
        assert delivered.weight_of((batch["x"].view(-1)[2:],)) == (batch.weight, True)
        assert delivered.weight_of(({"inputs": [batch]},)) == (batch.weight, True)


def test_computed_inputs_are_of_the_last_batch_where_none_is_taken_ahead():
    delivered = Delivered()
    for weight in (1.0, 2.0, 3.0):
        handed(delivered, batch := batch_of(4, weight))
        assert delivered.weight_of((batch["x"] * 2,)) == (weight, True)
        assert delivered.weight_of((batch["x"][:1] * 2,)) == (weight, True)  # and so are parts of it


def test_computed_inputs_are_told_by_their_rows_where_batches_are_taken_ahead():
    delivered = Delivered()
    full, short, later = batch_of(4, 1.0), batch_of(3, 2.0), batch_of(4, 1.0)
    handed(delivered, full, short)
    assert delivered.weight_of((full["x"] * 2,)) == (1.0, True)
    handed(delivered, later)
    assert delivered.weight_of((short["x"] * 2,)) == (2.0, True)
    assert delivered.weight_of((later["x"] * 2,)) == (1.0, True)


def test_a_part_of_a_batch_is_not_taken_for_a_short_one_of_long_ago():
    delivered = Delivered()
    handed(delivered, batch_of(4, 1.0), short := batch_of(2, 2.0))
    delivered.weight_of((short["x"],))
    handed(delivered, batch_of(4, 1.0))
    for _ in range(3):
        handed(delivered, full := batch_of(4, 1.0))
        with pytest.raises(LoaderError, match=r"which batch .*first shape \(2, 3\).*2 rows weigh 2, 4 rows weigh 1"):
            delivered.weight_of((full["x"][:2] * 2,))


def test_what_was_handed_out_before_anybody_looked_may_be_ahead():
    delivered = Delivered()
    delivered.miss()
    handed(delivered, batch_of(4, 1.0))
    assert delivered.weight_of((torch.rand(4, 3),)) == (1.0, True)
    handed(delivered, batch_of(4, 2.0))
    with pytest.raises(LoaderError, match="which batch"):
        delivered.weight_of((torch.rand(4, 3),))


def test_a_batch_is_known_again():
    delivered = Delivered()
    handed(delivered, mine := batch_of(4, 1.0))
    assert delivered.has(mine)
    assert not delivered.has(batch_of(4, 1.0))
