"""The program in this process: exit statuses, what is printed where, dispatch, sweeps."""

import sys

import pytest

from flodl_pipe.cli import main as cli
from flodl_pipe.cli.dispatch import run_job
from flodl_pipe.config.compose import load_config, run_hydra
from flodl_pipe.errors import SourceError


def test_a_recipe_runs_with_overrides_in_a_dated_folder(call, jobs, folder):
    status, _, err = call("recipe=olmo_shards", "loader.batch_size=8")
    assert (status, err) == (0, "")
    assert [config.loader.batch_size for config in jobs.seen] == [8]
    assert jobs.seen == [load_config("olmo_shards", "loader.batch_size=8")]
    (run,) = folder.path.glob("outputs/*/*")
    assert (run / ".hydra/overrides.yaml").read_text() == "- +recipe=olmo_shards\n- loader.batch_size=8\n"
    assert (run / "flodl_pipe.log").is_file()


def test_the_job_decides_what_runs(call, jobs, monkeypatch):
    called = []
    monkeypatch.setitem(sys.modules, "flodl_pipe.jobs.plan", type("plan", (), {"main": staticmethod(called.append)}))
    assert call("+recipe=olmo_shards", "job=plan")[0] == 0
    assert [config.job.kind for config in called] == ["plan"]
    assert not jobs.seen


def test_flags_may_stand_between_overrides(call, jobs):
    status, out, _ = call("+recipe=olmo_shards", "--cfg", "job", "loader.batch_size=3")
    assert status == 0
    assert "batch_size: 3" in out
    assert not jobs.seen


def test_a_refused_config_is_one_block_and_leaves_nothing_behind(call, jobs, folder):
    folder("recipes/mine.yaml", "defaults: [olmo_shards, _self_]\nloader:\n  vram_max_usge: 0.5\n")
    status, out, err = call("+recipe=mine", "source.seq_len=0")
    assert (status, out) == (2, "")
    assert err == (
        "flodl_pipe: 2 problems in the config\n"
        "  source.seq_len: must be at least 1, got 0\n"
        "      set at command line: source.seq_len=0\n"
        "  loader.vram_max_usge: unknown key. Did you mean 'vram_max_usage'?\n"
        "      set at recipes/mine.yaml:3\n"
    )
    assert not jobs.seen
    assert [entry.name for entry in folder.path.iterdir()] == ["recipes"]


@pytest.mark.full
def test_nothing_given_says_what_is_needed(call):
    status, _, err = call()
    assert status == 2
    assert "source.seq_len: required" in err
    assert "loader.batch_size: required" in err
    assert "+recipe=NAME with one of: cifar10, cifar10_disk, custom," in err


@pytest.mark.parametrize(
    "argv",
    [
        ["--cfg", "job", "sourc=records"],
        ["--cfg", "job", "+recipe=olmo_shard"],
        ["--help", "+recipe=olmo_shard"],
        ["--info", "defaults", "+recipe=olmo_shard"],
        pytest.param(["-m", "+recipe=olmo_shard,nanogpt_bin"], marks=pytest.mark.full),
        ["-m", "+recipe=olmo_shards", "loader.batch_sise=1,2"],
        ["--cfg", "job", "source=null"],
        ["--cfg", "job", "source.path=[a"],
        ["--resolve", "+recipe=olmo_shards"],
        ["--config-name", "other"],
    ],
)
def test_hydras_own_errors_are_ours_without_a_traceback(call, jobs, argv):
    status, _, err = call(*argv)
    assert status == 2, err
    assert "flodl_pipe: 1 problem in the config\n" in err
    assert "Traceback" not in err
    assert not jobs.seen


def test_our_error_in_a_job_has_no_traceback(call, jobs):
    def act(config):
        raise SourceError("x.bin: 3 bytes; rule; remedy")

    jobs.act = act
    assert call("+recipe=olmo_shards") == (2, "", "flodl_pipe: x.bin: 3 bytes; rule; remedy\n")


@pytest.mark.full
def test_the_traceback_can_be_asked_for(call, jobs, monkeypatch):
    def act(config):
        raise SourceError("no data")

    jobs.act = act
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    status, _, err = call("+recipe=olmo_shards")
    assert status == 2
    assert "in act\n" in err
    assert err.endswith("flodl_pipe: no data\n")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bug"),
        pytest.param(ImportError("no such module"), marks=pytest.mark.full),
        pytest.param(ZeroDivisionError(), marks=pytest.mark.full),
    ],
)
def test_another_programs_exception_comes_through_whole(jobs, error):
    def act(config):
        raise error

    jobs.act = act
    with pytest.raises(type(error)) as caught:
        cli.main(["+recipe=olmo_shards"])
    assert caught.value is error
    assert caught.traceback[-1].name == "act"


@pytest.mark.full
def test_omegaconfs_exception_in_a_job_is_the_jobs(jobs):
    from omegaconf.errors import ConfigAttributeError

    def act(config):
        raise ConfigAttributeError("of the job")

    jobs.act = act
    with pytest.raises(ConfigAttributeError):
        cli.main(["+recipe=olmo_shards"])


def test_an_interrupt_is_130_in_one_line(call, jobs):
    def act(config):
        raise KeyboardInterrupt

    jobs.act = act
    assert call("+recipe=olmo_shards") == (130, "", "flodl_pipe: interrupted\n")


@pytest.mark.full
@pytest.mark.parametrize("rank", ["0", "1"])
def test_an_interrupt_of_several_ranks_is_told_by_rank_0(call, jobs, monkeypatch, rank):
    def act(config):
        raise KeyboardInterrupt

    jobs.act = act
    for name, value in {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert call("+recipe=olmo_shards") == (130, "", "flodl_pipe: interrupted\n" if rank == "0" else "")


def test_a_sweep_runs_every_point(call, jobs, folder):
    status, _, err = call("-m", "+recipe=olmo_shards,nanogpt_bin", "loader.batch_size=8,16")
    assert status == 0, err
    assert [(config.source.seq_len, config.loader.batch_size) for config in jobs.seen] == [
        (1024, 8),
        (1024, 16),
        (256, 8),
        (256, 16),
    ]
    assert len(list(folder.path.glob("multirun/*/*/[0-3]"))) == 4


@pytest.mark.full
def test_a_fault_at_a_point_of_a_sweep_names_the_point(call, jobs):
    status, _, err = call("-m", "+recipe=olmo_shards", "loader.batch_size=8,0")
    assert status == 2
    assert "['+recipe=olmo_shards', 'loader.batch_size=0']" in err
    assert "loader.batch_size: must be at least 1, got 0\n      set at command line: loader.batch_size=0" in err
    assert "Traceback" not in err
    assert len(jobs.seen) == 1


@pytest.mark.full
def test_a_recipe_may_hold_a_sweep(call, jobs, folder):
    folder(
        "recipes/mine.yaml", "defaults: [olmo_shards, _self_]\nhydra: {sweeper: {params: {loader.batch_size: '1,2'}}}\n"
    )
    assert call("-m", "+recipe=mine")[0] == 0
    assert [config.loader.batch_size for config in jobs.seen] == [1, 2]


def test_a_sweep_under_torchrun_is_refused(call, jobs, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    status, _, err = call("-m", "+recipe=olmo_shards", "loader.batch_size=1,2")
    assert status == 2
    assert "one sweep per rank" in err
    assert not jobs.seen


def test_a_rank_that_is_not_0_leaves_no_trace_and_speaks_last(call, jobs, folder, monkeypatch):
    slept = []
    monkeypatch.setattr(cli.time, "sleep", slept.append)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert call("+recipe=olmo_shards")[0] == 0
    assert len(jobs.seen) == 1
    assert list(folder.path.iterdir()) == []
    assert call("+recipe=olmo_shards", "loader.batch_size=0")[0] == 2
    assert slept == [2.0]


def test_the_tasks_number_comes_back_for_sweepers(jobs):
    assert run_hydra(["+recipe=olmo_shards", "loader.batch_size=12"], run_job) == 12.0


@pytest.mark.full
def test_own_config_folders_work_on_the_command_line(call, jobs, folder):
    folder("own/recipes/mine.yaml", "defaults: [{override /source: mine}]\nloader: {batch_size: 3}\n")
    folder("own/source/mine.yaml", "kind: token_shards\nseq_len: 5\n")
    folder("own/source/records.yaml", "kind: records\n")
    status, _, err = call("--config-dir", "own", "+recipe=mine")
    assert status == 0, err
    assert (jobs.seen[0].source.seq_len, jobs.seen[0].loader.batch_size) == (5, 3)


def test_a_recipe_cannot_run_code_before_validation(call, folder):
    folder("recipes/evil.yaml", "hydra: {callbacks: {x: {_target_: pathlib.Path.touch, _args_: [PWNED]}}}\n")
    for flags in ([], ["-m"], ["--cfg", "job"]):
        status, _, err = call(*flags, "+recipe=evil")
        assert status == 2
        assert "hydra.callbacks: not allowed in a recipe" in err
    assert not (folder.path / "PWNED").exists()


def test_argv_and_environment_are_put_back(call, jobs, monkeypatch):
    import os

    before = list(sys.argv), dict(os.environ)
    call("+recipe=olmo_shards")
    call("+recipe=olmo_shard")
    assert (list(sys.argv), dict(os.environ)) == before


@pytest.mark.parametrize("flags", [[], ["-m"]])
def test_a_run_folder_that_cannot_be_written_is_one_message(call, jobs, folder, flags):
    folder("outputs", "in the way")
    folder("multirun", "in the way")
    status, out, err = call(*flags, "+recipe=olmo_shards")
    assert (status, out) == (2, "")
    assert "hydra.run.dir: the folder of the run cannot be written (" in err
    assert "hydra.run.dir=/some/folder" in err
    assert not jobs.seen


def test_a_log_that_cannot_be_written_is_one_message(call, jobs, folder):
    (folder.path / "mine/flodl_pipe.log").mkdir(parents=True)
    status, _, err = call("+recipe=olmo_shards", "hydra.run.dir=mine")
    assert status == 2
    assert "mine/flodl_pipe.log: Is a directory" in err


@pytest.mark.full
@pytest.mark.parametrize("flags", [[], ["-m"]])
def test_a_jobs_own_failure_to_write_is_not_taken_for_the_run_folders(jobs, flags):
    def act(config):
        raise PermissionError(13, "Permission denied", "elsewhere")

    jobs.act = act
    with pytest.raises(PermissionError):
        cli.main([*flags, "+recipe=olmo_shards"])


@pytest.mark.full
def test_a_plan_leaves_no_folder_behind_even_if_a_recipe_asks_for_it(call, folder, monkeypatch):
    called = []
    monkeypatch.setitem(sys.modules, "flodl_pipe.jobs.plan", type("plan", (), {"main": staticmethod(called.append)}))
    folder("recipes/mine.yaml", "defaults: [olmo_shards, override /job: plan, _self_]\n")
    folder("outputs", "in the way")
    assert call("+recipe=mine") == (0, "", "")
    assert call("+recipe=olmo_shards", "job=plan", "hydra.run.dir=/proc/foo") == (0, "", "")
    assert [config.job.kind for config in called] == ["plan", "plan"]
    assert sorted(entry.name for entry in folder.path.iterdir()) == ["outputs", "recipes"]


@pytest.mark.parametrize("flags", [[], pytest.param(["-m"], marks=pytest.mark.full), ["--cfg", "job"]])
def test_recipes_that_include_each_other_are_named(call, folder, flags):
    folder("recipes/self.yaml", "defaults: [self]\n")
    folder("recipes/a.yaml", "defaults: [/recipe/b, _self_]\n")
    folder("recipes/b.yaml", "defaults: [a]\n")
    for name, way in {"self": "self -> self", "a": "a -> b -> a"}.items():
        status, _, err = call(*flags, f"+recipe={name}")
        assert status == 2
        assert f"recipe: a recipe may not include itself, but {way};" in err
        assert f"set at recipes/{name}.yaml\n" in err


def test_a_working_directory_that_is_gone_is_one_message(call, jobs, folder, monkeypatch):
    gone = folder.path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for argv in (["+recipe=olmo_shards"], ["--help"]):
        status, _, err = call(*argv)
        assert status == 2
        assert "the working directory cannot be used (No such file or directory): change to a folder that exists" in err
    monkeypatch.chdir(folder.path)


@pytest.mark.full
def test_a_pipe_of_a_jobs_own_may_not_break_unseen(jobs):
    def act(config):
        raise BrokenPipeError(32, "Broken pipe")

    jobs.act = act
    with pytest.raises(BrokenPipeError):
        cli.main(["+recipe=olmo_shards"])
