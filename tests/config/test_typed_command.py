"""What a job is told of the command line that asked for it, so that another process can be given the same."""

import pytest

from flodl_pipe.config.compose import check_command, run_hydra, typed_command
from flodl_pipe.errors import ConfigError

START = ("source.seq_len=8", "loader.batch_size=4")


@pytest.fixture
def noted(folder):
    """Run a command line; returns what the job was told, once per job."""

    def run(*argv):
        told = []

        def task(config):
            told.append((config.job.kind, typed_command()))

        run_hydra(argv, task)
        return told

    return run


def test_nobody_typed_anything_outside_a_job():
    assert typed_command() is None


def test_a_job_is_told_what_was_typed_and_nothing_that_was_added(noted):
    ((kind, words),) = noted(*START, "job=launch", "data_dir='a b/${oc.env:HOME}'", "hydra.run.dir=here")
    assert kind == "launch"
    assert words == (*START, "job=launch", "data_dir='a b/${oc.env:HOME}'", "hydra.run.dir=here")
    assert typed_command() is None


def test_flags_that_change_the_config_stand_before_the_overrides(noted, folder):
    folder("own/recipes/mine.yaml", "# @package _global_\nloader: {batch_size: 3}\nsource: {seq_len: 8}\n")
    ((_, words),) = noted("--run", "recipe=mine", "--config-dir", "own", "job=launch")
    assert words == (f"--config-dir={folder.path / 'own'}", "+recipe=mine", "job=launch")
    assert check_command(words).loader.batch_size == 3


def test_each_point_of_a_sweep_has_words_and_a_folder_of_its_own(noted, folder):
    told = noted("-m", *START, "job=launch", "sampling.seed=1,2", 'hydra.sweep.dir="it\'s here"')
    for number, (_, words) in enumerate(told):
        assert words[:-1] == (*START, "job=launch", f"sampling.seed={number + 1}")
        place = folder.path / "it's here" / str(number)
        assert words[-1] == f"hydra.run.dir='{place}'".replace("it's", "it\\'s")
        assert check_command(words).sampling.seed == number + 1
    assert len(told) == 2


def test_a_launch_leaves_no_folder(noted, folder):
    noted(*START, "job=launch")
    assert list(folder.path.iterdir()) == []


def test_a_command_is_checked_as_it_would_be_when_given():
    with pytest.raises(ConfigError, match="sample_zise"):
        check_command((*START, "loader.sample_zise=2"))
