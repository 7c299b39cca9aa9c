"""Sizes, counts and durations, in and out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_pipe.units import format_bytes, format_count, format_duration, parse_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0B", 0),
        ("12B", 12),
        ("1KB", 1_000),
        ("1KiB", 1_024),
        ("1.5 GiB", 1_610_612_736),
        (" 80GB ", 80_000_000_000),
        ("2PiB", 2 * 2**50),
        ("0.5KB", 500),
    ],
)
def test_a_size_is_a_number_with_a_unit(text, num_bytes):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["8G", "8g", "1.5T", "3k"])
def test_a_unit_that_could_mean_two_things_is_refused_with_both(text):
    number, unit = text[:-1], text[-1].upper()
    with pytest.raises(ValueError, match=f"ambiguous: write {number}{unit}B .* or {number}{unit}iB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["", "12", "GiB", "-1GiB", "1e3B", "8 gib", "8GIB", "1.GiB", "1GiB 2", "nanB", "8Gb"])
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="is not a size: write bytes as an integer, or a string like 512MiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10 * 1024, "10.0 KiB"),
        (999 * 1024, "999 KiB"),
        (1_023_959, "0.98 MiB"),
        (1000 * 1024, "0.98 MiB"),
        (8 * 2**30, "8.00 GiB"),
        (5000 * 2**50, "5000 PiB"),
        (-1536, "-1.50 KiB"),
    ],
)
def test_bytes_are_written_with_three_digits(num_bytes, text):
    assert format_bytes(num_bytes) == text


@given(st.integers(0, 2**60))
def test_what_is_written_reads_back_to_within_half_a_percent(num_bytes):
    # Half of the last of three digits; and bytes are whole numbers.
    assert abs(parse_bytes(format_bytes(num_bytes)) - num_bytes) <= num_bytes / 200 + 1


def test_counts_have_separators():
    assert [format_count(value) for value in (0, 999, 1000, 12345678)] == ["0", "999", "1,000", "12,345,678"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 us"),
        (0.0005, "500.0 us"),
        (0.0015, "1.5 ms"),
        (1, "1.00 s"),
        (59.9, "59.90 s"),
        (60, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (3599.7, "1 h 00 min"),
        (3600, "1 h 00 min"),
        (90_061, "25 h 01 min"),
    ],
)
def test_durations_are_written_in_the_unit_that_reads_best(seconds, text):
    assert format_duration(seconds) == text
