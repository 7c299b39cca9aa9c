"""Which samples a subset has."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from flodl_pipe.config.source_base import SubsetConfig
from flodl_pipe.errors import ConfigError, SourceError
from flodl_pipe.sources.index_sets import read_indices, select


def chosen(num_samples, **keys):
    return np.array(select(num_samples, SubsetConfig(**keys))[0], dtype=np.int64)


SHARES = st.lists(st.integers(1, 99), min_size=2, max_size=6).map(lambda found: [part / sum(found) for part in found])


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 70_000), shares=SHARES, seed=st.integers(0, 2**64 - 1))
def test_the_parts_of_a_split_are_disjoint_and_cover_everything(n, shares, seed):
    split = {f"part{i}": share for i, share in enumerate(shares)}
    parts, empty = [], 0
    for name in split:
        try:
            parts.append(chosen(n, split=split, take=name, seed=seed))
        except ConfigError:  # of very few samples a part may get none
            empty += 1
    assert empty < len(shares)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    for part in parts:
        assert (np.diff(part) > 0).all(), "storage order"
    for part, share in zip(parts, shares, strict=False) if not empty else ():
        assert abs(len(part) - n * share) < 1 + 1e-6


def test_a_split_does_not_depend_on_the_names_of_its_parts():
    first = chosen(1000, split={"train": 0.8, "val": 0.1, "test": 0.1}, take="val", seed=3)
    renamed = chosen(1000, split={"a": 0.8, "val": 0.1, "b": 0.1}, take="val", seed=3)
    assert np.array_equal(first, renamed)
    assert not np.array_equal(first, chosen(1000, split={"a": 0.8, "val": 0.1, "b": 0.1}, take="val", seed=4))


def test_a_larger_fraction_holds_the_smaller_one():
    small, large = chosen(70_000, fraction=0.1), chosen(70_000, fraction=0.25)
    assert (len(small), len(large)) == (7000, 17_500)
    assert np.isin(small, large).all()


def test_choices_are_pinned():
    """A validation set must stay what it was when the program is upgraded."""
    assert chosen(20, fraction=0.25).tolist() == [2, 12, 14, 17, 18]
    assert chosen(20, split={"a": 0.75, "b": 0.25}, take="b", seed=1).tolist() == [1, 6, 12, 15, 16]
    assert chosen(10**5, fraction=0.00005).tolist() == [10826, 24807, 46897, 58502, 82867]


def test_a_choice_is_spread_evenly():
    picked = chosen(100_000, fraction=0.3, seed=5)
    counts = np.histogram(picked, bins=50, range=(0, 100_000))[0]
    assert abs(counts - 600).max() < 5 * np.sqrt(600)


def test_rules_narrow_one_after_the_other(tmp_path):
    (tmp_path / "i.txt").write_text("\n".join(map(str, range(0, 100, 2))))
    inside = chosen(100, indices=str(tmp_path / "i.txt"), fraction=0.5, split={"a": 0.8, "b": 0.2}, take="b")
    assert len(inside) == 5
    assert (inside % 2 == 0).all()
    ranged = chosen(100, range=[40, 60], split={"a": 0.5, "b": 0.5}, take="a")
    assert len(ranged) == 10
    assert ranged.min() >= 40
    assert ranged.max() < 60


def test_a_range_and_what_is_one_hold_no_array(tmp_path):
    assert select(10, SubsetConfig(range=[2, 5])) == (range(2, 5), "range 2 .. 5")
    (tmp_path / "i.txt").write_text("3\n4\n5\n")
    assert select(10, SubsetConfig(indices=str(tmp_path / "i.txt")))[0] == range(3, 6)
    assert select(10, SubsetConfig(fraction=1.0)) == (range(10), "fraction 1.0, seed 0")


def test_rules_are_told_in_words():
    found = select(100, SubsetConfig(range=[0, 50], fraction=0.5, split={"a": 0.8, "b": 0.2}, take="a", seed=7))
    assert found[1] == "range 0 .. 50; fraction 0.5, seed 7; split a=0.8, seed 7"


def test_range_and_indices_exclude_each_other():
    with pytest.raises(ValidationError, match="cannot be set together with indices"):
        SubsetConfig(range=[0, 1], indices="x")


@pytest.mark.parametrize(
    ("n", "keys", "message"),
    [
        (10, {"range": [3, 11]}, r"source\.subset\.range: \[3, 11\] reaches beyond the 10 samples"),
        (10, {"fraction": 0.01}, r"fraction: 0\.01 of 10 samples is 0 samples; use at least 0\.1"),
        (3, {"split": {"a": 0.99, "b": 0.01}, "take": "b"}, r"split\.b: a share of 0\.01 of 3 samples is 0 samples"),
        (9, {"range": [0, 3], "fraction": 0.1}, r"0\.1 of 3 samples"),
    ],
)
def test_a_rule_that_leaves_nothing_is_an_error_with_both_numbers(n, keys, message):
    with pytest.raises(ConfigError, match=message):
        chosen(n, **keys)


def test_files_of_indices_may_be_text_or_arrays(tmp_path):
    text, array = tmp_path / "i.txt", tmp_path / "i.npy"
    text.write_text(" 7\r\n\n2\n+9\n")
    found, note = read_indices(str(text), 10)
    assert found.tolist() == [2, 7, 9]
    assert note == " (sorted: the file is not in order)"
    for dtype in ("<u1", "<i8", ">i4", "<u8"):
        np.save(array, np.array([2, 7, 9], dtype))
        found, note = read_indices(str(array), 10)
        assert (found.tolist(), found.dtype, note) == ([2, 7, 9], np.int64, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n2\n10\n", r"i\.txt: line 3: index 10 is not in 0 \.\. 9; the source has 10 samples"),
        ("1\n\n-2\n", r"line 3: index -2 is not in 0 \.\. 9"),
        ("4\n1\n\n7\n1\n4\n", r"line 5: index 1 stands already at line 2"),
        ("1\nx\n", r"line 2: 'x' is not an index"),
        ("1 2\n", "line 1: '1 2' is not an index"),
        ("1.0\n", r"line 1: '1\.0' is not"),
        ("1_0\n", "line 1: '1_0' is not"),
        ("٣\n", "line 1: '٣' is not"),
        ("9223372036854775808\n", "line 1: '9223372036854775808' is not"),
        ("99999999999999999999999\n", "is not an index"),
        ("\n\n", "holds 0 indices, so 0 of 10 samples"),
        ("", "holds 0 indices"),
    ],
)
def test_text_that_is_no_list_of_indices_is_refused_with_its_line(tmp_path, text, message):
    (tmp_path / "i.txt").write_text(text, encoding="utf-8")
    with pytest.raises(SourceError, match=message):
        read_indices(str(tmp_path / "i.txt"), 10)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([1, 2, 10]), "entry 2: index 10 is not in"),
        (np.array([1, -1], dtype="i1"), "entry 1: index -1 is not in"),
        (np.array([5, 3, 5]), "entry 2: index 5 stands already at entry 0"),
        (np.array([1.0]), r"holds float64 of shape \(1,\)"),
        (np.zeros((2, 2), "i4"), r"holds int32 of shape \(2, 2\)"),
        (np.array([True]), "holds bool"),
        (np.array([], "i4"), "holds 0 indices"),
        (np.array([2**64 - 1], "u8"), "entry 0: index 18446744073709551615 is not below"),
    ],
)
def test_an_array_that_is_no_list_of_indices_is_refused_with_its_place(tmp_path, array, message):
    np.save(tmp_path / "i.npy", array)
    with pytest.raises(SourceError, match=message):
        read_indices(str(tmp_path / "i.npy"), 10)


def test_a_pickle_or_a_damaged_array_is_refused(tmp_path):
    file = tmp_path / "i.npy"
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(SourceError, match=r"not a readable \.npy file"):
        read_indices(str(file), 10)
    np.save(file, np.arange(5))
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(SourceError, match=r"not a readable \.npy file"):
        read_indices(str(file), 10)


def test_a_file_that_is_not_there_or_not_here_is_an_error(tmp_path):
    with pytest.raises(SourceError, match=r"none\.txt cannot be read \(No such file"):
        read_indices(str(tmp_path / "none.txt"), 10)
    with pytest.raises(SourceError, match="s3://"):
        read_indices("s3://bucket/i.npy", 10)
