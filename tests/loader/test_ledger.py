"""The ledger of skipped samples: sorted, bounded, said once, read back from a cursor or refused."""

import json
import logging
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_pipe.errors import ResumeError, SourceError
from flodl_pipe.loader.ledger import SkipLedger, from_text, json_lines, reason_of
from flodl_pipe.loader.skipping import replacements
from tests.loader.waiting import joined


def ledger(*samples, max_skipped=100):
    made = SkipLedger(max_skipped)
    for sample in samples:
        made.add(sample, f"OSError: {sample} is bad")
    return made


def test_it_is_ascending_whatever_came_first():
    made = ledger(7, 3, 11, 3)
    assert made.entries() == tuple((sample, f"OSError: {sample} is bad") for sample in (3, 7, 11))
    assert len(made) == 3
    assert 7 in made
    assert 8 not in made
    assert made.text() == ('[[3,"OSError: 3 is bad"],[7,"OSError: 7 is bad"],[11,"OSError: 11 is bad"]]')


def test_an_empty_one_costs_nothing():
    made = ledger()
    assert made.known(np.arange(5)) is None
    assert made.text() == ""
    assert made.entries() == ()


@given(st.sets(st.integers(0, 60), min_size=1), st.lists(st.integers(0, 60)))
def test_known_is_membership(skipped, samples):
    made = SkipLedger(100)
    for sample in skipped:
        made.add(sample, "bad")
    assert made.known(np.array(samples, dtype=np.int64)).tolist() == [sample in skipped for sample in samples]


def test_a_sample_is_said_once(caplog):
    made = ledger(5, 5, 5)
    made.take_over([(5, "again"), (6, "from a state")])
    made.add(6, "again")
    assert [record.getMessage() for record in caplog.records] == [
        "sample 5 cannot be read and is skipped, 1 of at most 100: OSError: 5 is bad"
    ]
    assert made.entries() == ((5, "OSError: 5 is bad"), (6, "from a state"))


def test_one_more_than_the_limit_is_an_error_that_says_all():
    made = ledger(1, 2, max_skipped=2)
    made.add(2, "known")
    with pytest.raises(SourceError) as caught:
        made.add(1234, "OSError: torn")
    for part in ("3 samples", "source.max_skipped is 2", "sample 1,234: OSError: torn", "raise source.max_skipped"):
        assert part in str(caught.value)
    assert [sample for sample, _ in made.entries()] == [1, 2]


class Wall:
    """A bulletin of one process, which can be out of order."""

    def __init__(self):
        self.posted = []
        self.num_looks = 0
        self.is_open = True

    def post(self, text):
        if self.is_open:
            self.posted.append(text)

    def read(self, after=0):
        self.num_looks += self.is_open
        return self.posted[after:]


def ranks(count=2, *, max_skipped=100):
    wall = Wall()
    return wall, [SkipLedger(max_skipped, wall) for _ in range(count)]


def samples_of(made):
    return [sample for sample, _ in made.entries()]


def test_ranks_keep_one_ledger(caplog):
    wall, (one, other) = ranks()
    one.add(7, "torn")
    other.add(3, "bad")
    other.add(7, "torn too")
    assert one.text() == other.text() == '[[3,"bad"],[7,"torn"]]'
    assert wall.posted == ['[[7,"torn"]]', '[[3,"bad"]]']
    assert [record.getMessage() for record in caplog.records] == [
        "sample 7 cannot be read and is skipped, 1 of at most 100: torn",
        "sample 3 cannot be read and is skipped, 2 of at most 100: bad",
    ]


def test_a_sample_that_two_ranks_meet_at_once_counts_once():
    wall, (one, other) = ranks(max_skipped=2)
    wall.posted.append('[[5,"seen by a third"]]')
    one.add(5, "x")
    other.add(5, "y")
    wall.posted.append('[[5,"and again"],[6,"x"]]')
    one.look()
    assert one.text() == other.text() == '[[5,"seen by a third"],[6,"x"]]'


def test_reads_do_not_look_at_the_bulletin():
    wall, (one, other) = ranks()
    one.add(7, "torn")
    looked = wall.num_looks
    assert other.known(np.arange(10)) is None
    assert wall.num_looks == looked
    other.look()
    assert wall.num_looks == looked + 1
    assert other.known(np.arange(10)).tolist() == [sample == 7 for sample in range(10)]


@pytest.mark.parametrize("notices", ["a pass", "a save", "a skip", "a state"])
def test_one_too_many_ends_every_rank(notices):
    _, (one, other) = ranks(max_skipped=2)
    one.add(1, "x")
    other.add(2, "x")
    said = "3 samples could not be read, and source.max_skipped is 2; the last one is sample 9: torn"
    with pytest.raises(SourceError, match=said):
        one.add(9, "torn")
    act = {
        "a pass": other.look,
        "a save": other.text,
        "a skip": lambda: other.add(1, "known"),
        "a state": lambda: other.take_over([]),
    }
    with pytest.raises(SourceError, match=said):
        act[notices]()
    for made in (one, other):  # whoever has been told may save, and begins no other pass
        assert made.text() == '[[1,"x"],[2,"x"]]'
        with pytest.raises(SourceError, match=said):
            made.look()
    assert other.known(np.array([1, 9])).tolist() == [True, False]
    with pytest.raises(SourceError, match="4 samples"):
        other.add(10, "torn")


def test_what_a_state_lists_is_told_to_the_others_once():
    wall, (one, other) = ranks(max_skipped=3)
    for made in (one, other):
        made.take_over([(4, "old"), (5, "old")])
    assert wall.posted == ['[[4,"old"],[5,"old"]]']
    with pytest.raises(ResumeError, match="there would be 4"):
        one.take_over([(6, "x"), (7, "x")])
    other.add(8, "new")
    assert samples_of(one) == samples_of(other) == [4, 5, 8]


def test_a_ledger_in_place_of_another_holds_the_same():
    wall, (one, other) = ranks(max_skipped=2)
    one.add(1, "x")
    other.add(2, "x")
    anew = SkipLedger(2, wall)
    anew.inherit(one.entries())
    assert anew.entries() == one.entries()
    with pytest.raises(SourceError):
        anew.add(3, "x")


def test_without_the_others_a_rank_counts_alone(caplog):
    wall, (one, other) = ranks(max_skipped=2)
    one.add(1, "x")
    other.look()
    wall.is_open = False
    one.add(2, "x")
    assert (samples_of(one), samples_of(other)) == ([1, 2], [1])
    with pytest.raises(SourceError, match=r"3 samples could not be read.*the last one is sample 3"):
        one.add(3, "x")
    assert one.text() == '[[1,"x"],[2,"x"]]'
    assert len(caplog.records) == 2


def test_many_threads_lose_nothing():
    made = SkipLedger(1000)
    logging.getLogger("flodl_pipe").setLevel(logging.ERROR)
    try:
        threads = [
            threading.Thread(target=lambda first=first: [made.add(n, "x") for n in range(first, 400, 4)])
            for first in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            joined(thread)
    finally:
        logging.getLogger("flodl_pipe").setLevel(logging.NOTSET)
    assert [sample for sample, _ in made.entries()] == list(range(400))


def test_a_text_is_read_back():
    made = ledger(0, 9, 4)
    again = SkipLedger(3)
    again.take_over(from_text(made.text(), num_samples=10))
    assert again.entries() == made.entries()
    assert from_text("", num_samples=10) == ()


@pytest.mark.parametrize(
    "text",
    ["[", "7", "null", "[7]", "[[7]]", '[["7","x"]]', "[[7,8]]", '[[7,"x",1]]', '[[-1,"x"]]', '[[true,"x"]]',
     '[[7,"x"],[7,"y"]]', '[[7,"x"],[3,"y"]]', "{}x", '[[1e3,"x"]]', f'[[{2**63},"x"]]'],
)  # fmt: skip
def test_what_is_no_ledger_is_refused(text):
    with pytest.raises(ResumeError, match="skipped is not what a loader saves"):
        from_text(text, num_samples=10**6)


def test_samples_beyond_the_source_are_refused():
    with pytest.raises(ResumeError, match="sample 10 is listed as skipped, and the source has 10 samples"):
        from_text('[[10,"x"]]', num_samples=10)


def test_a_state_with_more_than_the_limit_is_refused_and_changes_nothing():
    made = ledger(1, max_skipped=2)
    with pytest.raises(ResumeError, match=r"there would be 3, and source.max_skipped is 2; set it to 3 or more"):
        made.take_over([(5, "x"), (6, "x")])
    assert [sample for sample, _ in made.entries()] == [1]


def test_reasons_are_one_short_line():
    assert reason_of(OSError("a\n  b")) == "OSError: a b"
    assert reason_of(SourceError("shard.bin, byte 7: torn")) == "shard.bin, byte 7: torn"
    assert reason_of(KeyError()) == "KeyError"
    assert len(reason_of(ValueError("x" * 900))) == 200


def test_json_lines():
    lines = json_lines([(3, 'says "no"'), (8, "x")]).splitlines()
    assert [json.loads(line) for line in lines] == [{"sample": 3, "reason": 'says "no"'}, {"sample": 8, "reason": "x"}]


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4), st.sampled_from([1, 2]))
def test_the_nearest_good_row_of_the_step_stands_in(steps, unit):
    found = replacements(np.array(steps), unit=unit).tolist()
    for number, (good, rows) in enumerate(zip(steps, found, strict=True)):
        for row, chosen in enumerate(rows):
            place = chosen - 6 * number
            if not any(good):
                assert chosen == -1
            elif good[row]:
                assert place == row
            elif unit == 2 and good[row ^ 1]:
                assert place == row ^ 1
            elif any(good[:row]):
                assert place == max(r for r in range(row) if good[r])
            else:
                assert place == min(r for r in range(6) if good[r])


def test_an_odd_last_row_has_no_partner():
    assert replacements(np.array([[True, True, False]]), unit=2).tolist() == [[0, 1, 1]]
    assert replacements(np.array([[False, False, True]]), unit=2).tolist() == [[2, 2, 2]]
