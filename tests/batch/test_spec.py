"""What a sample's spec says, and what it refuses."""

import numpy as np
import pytest

from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import ConfigError

SPEC = SampleSpec.of(label=("uint8", ()), image=("<f4", (3, 2)))


def test_fields_keep_their_order():
    assert SPEC.names == ("label", "image")
    assert [field.name for field in SPEC] == ["label", "image"]
    assert len(SPEC) == 2


def test_dtypes_are_named_without_byte_order():
    assert [field.dtype for field in SPEC] == ["uint8", "float32"]


def test_sizes_are_counted_without_padding():
    assert [field.row_bytes for field in SPEC] == [1, 24]
    assert SPEC.row_bytes == 25


def test_empty_rows_have_the_fields_shapes_and_types():
    rows = SPEC.empty(5)
    assert {name: (array.shape, array.dtype) for name, array in rows.items()} == {
        "label": ((5,), np.dtype("uint8")),
        "image": ((5, 3, 2), np.dtype("float32")),
    }


def test_a_spec_without_fields_is_refused():
    with pytest.raises(ValueError, match=r"at least one field and distinct names, got \[\]"):
        SampleSpec(())


def test_two_fields_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"distinct names, got \['x', 'x'\]"):
        SampleSpec((Field("x", "uint8"), Field("x", "int64")))


def test_renaming_keeps_order_types_and_shapes():
    renamed = SPEC.renamed(["y", "x"])
    assert renamed.names == ("y", "x")
    assert [(field.dtype, field.shape) for field in renamed] == [(field.dtype, field.shape) for field in SPEC]
    assert SPEC.renamed(None) is SPEC


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b", "c"]])
def test_a_wrong_number_of_names_is_refused_with_both_counts(names):
    with pytest.raises(
        ConfigError, match=rf"{len(names)} names, but the source delivers 2 fields .*one name per field"
    ):
        SPEC.renamed(names)


def test_one_name_twice_is_refused():
    with pytest.raises(ValueError, match="distinct names"):
        SPEC.renamed(["a", "a"])


def test_it_reads_as_a_list_of_fields():
    assert str(SPEC) == "label uint8 (), image float32 (3, 2)"
