import pytest
from pydantic import TypeAdapter, ValidationError

from flodl_pipe.config.base import FIELD_DTYPES, ByteSize, Count, LocalPath, LocalPaths, Seed, StrictModel, TokenDtype

numpy = pytest.importorskip("numpy")


def check(annotation, value):
    return TypeAdapter(annotation).validate_python(value)


@pytest.mark.parametrize(("value", "number"), [(1, 1), (1e6, 1_000_000), (2**62, 2**62)])
def test_count_takes_integers_and_integral_floats(value, number):
    assert check(Count, value) == number
    assert type(check(Count, value)) is int


@pytest.mark.parametrize("value", [0, -1, 1.5, True, 2**62 + 1, float("inf"), float("nan"), "x", None])
def test_count_refuses(value):
    with pytest.raises(ValidationError):
        check(Count, value)


def test_seed_is_one_64_bit_word():
    assert check(Seed, 2**64 - 1) == 2**64 - 1
    assert check(Seed, 0) == 0
    for wrong in (-1, 2**64, False):
        with pytest.raises(ValidationError):
            check(Seed, wrong)


@pytest.mark.parametrize(("text", "size"), [("8GiB", 2**33), ("80GB", 80 * 10**9), (12, 12), (0, 0), (1e3, 1000)])
def test_byte_size(text, size):
    assert check(ByteSize, text) == size


@pytest.mark.parametrize(
    ("text", "message"), [("8G", "write 8GB"), ("big", "is not a size"), (-1, "greater than or equal")]
)
def test_byte_size_refuses(text, message):
    with pytest.raises(ValidationError, match=message):
        check(ByteSize, text)


def test_a_path_becomes_absolute_against_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert check(LocalPath, "a/b.bin") == str(tmp_path / "a/b.bin")
    assert check(LocalPath, "./part-*.npy") == str(tmp_path / "part-*.npy")
    assert check(LocalPath, "~/x[0-9]") == "/home/someone/x[0-9]"
    assert check(LocalPath, tmp_path) == str(tmp_path)
    assert check(LocalPath, "link/../x") == str(tmp_path / "link/../x"), "behind a link, .. is another folder"


def test_an_address_is_left_as_it_is():
    assert check(LocalPath, "s3://bucket/a b/*") == "s3://bucket/a b/*"


def test_paths_are_one_or_several(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check(LocalPaths, "a") == str(tmp_path / "a")
    assert check(LocalPaths, ["a", "s3://b"]) == [str(tmp_path / "a"), "s3://b"]
    for wrong, message in (
        ([], "empty list"),
        (["a", 3], "item 1 must be a path, got 3"),
        ("", "got ''"),
        (3, "got 3"),
    ):
        with pytest.raises(ValidationError, match=message):
            check(LocalPaths, wrong)


@pytest.mark.parametrize("name", ["uint8", "uint16", "uint32", "int32", "int64"])
def test_a_token_dtype_takes_numpys_spellings(name):
    kind = numpy.dtype(name)
    for spelling in (name, kind.str, kind.str[1:]):
        assert check(TokenDtype, spelling) == name


@pytest.mark.parametrize(
    "wrong", ["uint23", "U16", "numpy.uint32", ">u2", "float32", "=u2", "int16", "uint64", 16, None]
)
def test_a_token_dtype_refuses_the_rest_and_lists_what_it_takes(wrong):
    with pytest.raises(ValidationError, match="uint8, uint16, uint32, int32, int64"):
        check(TokenDtype, wrong)


def test_big_endian_is_named_as_the_reason():
    with pytest.raises(ValidationError, match="big-endian data is not supported"):
        check(TokenDtype, ">u2")


def test_every_field_dtype_means_what_numpy_means():
    for spelling, name in FIELD_DTYPES.items():
        assert numpy.dtype(spelling) == numpy.dtype(name).newbyteorder("<")


def test_a_section_is_frozen_and_refuses_unknown_keys():
    class Section(StrictModel):
        size: Count = 1
        """Doc."""

    with pytest.raises(ValidationError, match="frozen"):
        Section().size = 2
    with pytest.raises(ValidationError, match="Extra inputs"):
        Section(sise=2)
    assert Section.model_json_schema()["properties"]["size"]["description"] == "Doc."
