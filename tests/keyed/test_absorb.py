"""Key derivation: every tuple of words is a key of its own."""

import itertools

import numpy as np
import pytest

from flodl_pipe.keyed.absorb import absorb, absorb_words, mix, mix_words


def test_small_tuples_never_share_a_key():
    words = range(12)
    tuples = [(), *((a,) for a in words), *itertools.product(words, words), *itertools.product(words, words, words)]
    assert len({absorb(*key) for key in tuples}) == len(tuples)


def test_words_beyond_32_bits_do_not_wrap():
    assert absorb(5 + 2**32, 0) != absorb(5, 1)
    assert absorb(2**63, 0) != absorb(0, 2**63)


@pytest.mark.parametrize("word", [-1, 2**64])
def test_a_word_that_does_not_fit_is_refused(word):
    with pytest.raises(ValueError, match=rf"0 \.\. 2\*\*64 - 1, got {word}"):
        absorb(1, word)


def test_the_array_form_equals_the_scalar_form():
    words = np.array([0, 1, 2**63, 2**64 - 1], dtype=np.uint64)
    assert mix_words(words.copy()).tolist() == [mix(int(word)) for word in words]


def test_rows_may_have_keys_of_their_own():
    words = np.arange(5, dtype=np.uint64)
    common = absorb_words(7, words)
    own = absorb_words(np.full(5, 7, dtype=np.uint64), words)
    assert np.array_equal(common, own)
    assert len(set(common.tolist())) == 5


def test_values_are_pinned():
    assert absorb(42, 0) == 0xE93DC30825FA4549
    assert absorb_words(7, np.array([3], dtype=np.uint64)).tolist() == [0x7990A53976F6F216]
