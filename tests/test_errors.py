"""The error tree: text as users see it, and pickling, since errors cross process borders."""

import inspect
import pickle

import pytest

from flodl_pipe import errors
from flodl_pipe.errors import (
    ChangedError,
    ClusterError,
    ConfigError,
    FlodlPipeError,
    LoaderError,
    Problem,
    ResumeError,
    SourceError,
    StagingError,
)

TWO = ConfigError(
    [
        Problem("loader.vram_max_usge", "unknown key. Did you mean 'vram_max_usage'?", "recipes/mine.yaml:7"),
        Problem("source.seq_len", "must be at least 1, got 0", "command line: source.seq_len=0"),
    ]
)


def test_all_problems_of_a_config_are_told_in_one_block():
    # What the command line prints is "flodl_pipe: " and this text.
    assert str(TWO) == (
        "2 problems in the config\n"
        "  loader.vram_max_usge: unknown key. Did you mean 'vram_max_usage'?\n"
        "      set at recipes/mine.yaml:7\n"
        "  source.seq_len: must be at least 1, got 0\n"
        "      set at command line: source.seq_len=0"
    )


def test_one_problem_is_singular_and_has_no_place_when_it_is_a_default():
    error = ConfigError.at("source.path", "must be given")
    assert str(error) == "1 problem in the config\n  source.path: must be given"
    assert error.problems == (Problem("source.path", "must be given", None),)


def test_a_problem_without_a_key_starts_with_its_message():
    assert str(Problem("", "no recipe 'olmo'", "command line: +recipe=olmo")) == (
        "  no recipe 'olmo'\n      set at command line: +recipe=olmo"
    )


def test_a_config_error_is_a_value_error():
    with pytest.raises(ValueError, match="2 problems"):
        raise TWO


def test_every_error_is_of_the_one_tree():
    classes = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, Exception)]
    assert {cls.__name__ for cls in classes} == set(errors.__all__) - {"Problem", "OF_HOST"}
    assert all(issubclass(cls, FlodlPipeError) for cls in classes)
    assert issubclass(ChangedError, SourceError)


@pytest.mark.parametrize(
    "error",
    [
        TWO,
        ConfigError.at("a.b", "message"),
        *(cls("the text") for cls in (SourceError, ChangedError, LoaderError, StagingError, ResumeError, ClusterError)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_pickling(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
