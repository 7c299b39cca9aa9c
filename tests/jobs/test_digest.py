"""What ``job=digest`` prints, and that digests of parts add up."""

import pytest

from flodl_pipe.config.job import DigestJob
from flodl_pipe.errors import ClusterError, ConfigError, ResumeError
from flodl_pipe.jobs import run
from flodl_pipe.jobs.digest import main
from flodl_pipe.keyed.digest import Digest
from flodl_pipe.pipeline import build_loader

JOB = ("job=digest", "reports.progress=false")
OTHER = "0123456789abcdef0123456789abcdef"


def added(*digests):
    total = Digest()
    for digest in digests:
        total.merge(Digest.from_hex(digest, 0))
    return total.hex()


@pytest.fixture
def digest(table, config):
    """Run the job; returns the printed rows."""
    return lambda *overrides: table(main, config(*JOB, *overrides))[1]


def test_it_is_the_digest_of_what_a_loop_takes(digest, config):
    with build_loader(config(), keep_digest=True) as loader:
        for epoch in range(2):
            for _ in loader.epoch(epoch):
                pass
        counted = loader.statistics()
    printed = digest("job.epochs=2")
    assert printed["digest"] == counted.digest
    assert printed["rows"] == f"{counted.num_samples:,}" == "248"
    assert printed["steps"] == "62 steps"
    assert printed["order"].startswith("uniform ")
    assert "token" in printed["fingerprint"]


def test_it_is_the_digest_that_a_run_prints(digest, table, config):
    _, printed = table(run.main, config("job.max_steps=7", "reports.progress=false"))
    assert printed["digest"].split()[0] == digest("job.max_steps=7")["digest"]
    assert digest("job.max_steps=7")["digest"] != digest("job.max_steps=8")["digest"]


def test_it_does_not_depend_on_how_the_data_is_read_and_does_on_the_order(digest):
    wanted = digest()["digest"]
    assert digest("loader.mode=streaming", "loader.readers=0")["digest"] == wanted
    assert digest("sampling.seed=1")["digest"] != wanted


def test_the_parts_of_ranks_add_up(digest):
    same = ("loader.global_batch_size=8", "sampling.drop_last=false")
    whole = digest(*same)["digest"]
    parts = [digest(*same, "job.world_size=3", f"job.rank={rank}") for rank in range(3)]
    assert added(*(part["digest"] for part in parts)) == whole
    assert sum(int(part["rows"]) for part in parts) == 124
    assert parts[1]["part"] == "rank 1 of 3"
    first, second, _ = (part["digest"] for part in parts)
    printed = digest(*same, "job.world_size=3", "job.rank=2", f"job.add=[{first},{second}]", f"job.expect={whole}")
    assert printed["sum"] == whole
    assert printed["expected"] == f"{whole}, equal"


def test_what_comes_after_a_saved_run_completes_it(digest, table, config):
    whole = digest("job.epochs=2")["digest"]
    saving = config("job.epochs=2", "job.max_steps=40", "job.save=half.json", "reports.progress=false")
    _, half = table(run.main, saving)
    rest = digest("job.epochs=2", "job.resume=half.json")
    assert rest["steps"].startswith("22 steps, after the 40 steps before ")
    assert added(half["digest"].split()[0], rest["digest"]) == whole


def test_a_run_that_is_over_leaves_nothing(digest, table, config):
    table(run.main, config("job.save=all.json", "reports.progress=false"))
    printed = digest("job.resume=all.json")
    assert (printed["digest"], printed["rows"]) == ("0" * 32, "0")
    assert printed["end"] == "nothing was left to do"


def test_another_digest_than_expected_ends_with_status_1(config, shown, capsys):
    with pytest.raises(SystemExit) as stop:
        main(config(*JOB, f"job.expect={OTHER}"))
    err = capsys.readouterr().err
    assert stop.value.code == 1
    assert shown["expected"] == f"{OTHER}, DIFFERENT"
    found = shown["digest"].partition(" ")[0]
    assert err.startswith(f"flodl_pipe: the digest is {found}, and job.expect={OTHER};")


def test_the_program_prints_it_in_80_columns(call, tokens, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    tokens()
    words = ("source.path=part-0.bin", "source.dtype=uint16", "source.format=raw", "source.seq_len=8")
    status, out, err = call(*words, "loader.batch_size=4", "job=digest", f"job.expect={OTHER}")
    assert status == 1, err
    assert max(map(len, out.splitlines())) <= 80
    assert not list(tmp_path.glob("outputs"))


def test_a_digest_is_32_hexadecimal_digits():
    assert DigestJob(expect=OTHER.upper()).expect == OTHER
    for wrong in (12345678901234567890123456789012, "abc", f"{OTHER}0", [OTHER]):
        with pytest.raises(ValueError, match="32 hexadecimal digits"):
            DigestJob(expect=wrong)
    with pytest.raises(ValueError, match="must be below world_size=2, got 2"):
        DigestJob(rank=2, world_size=2)


def test_a_rank_needs_a_row(config):
    with pytest.raises(ConfigError, match="smaller than the 8 ranks"):
        main(config(*JOB, "loader.global_batch_size=4", "job.world_size=8"))


def test_a_save_of_another_stream_is_refused(config, table):
    table(run.main, config("job.max_steps=3", "job.save=a.json", "reports.progress=false"))
    with pytest.raises(ResumeError, match=r"a\.json: this state belongs to another stream"):
        main(config(*JOB, "sampling.seed=1", "job.resume=a.json"))


def test_under_torchrun_it_is_refused(config, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ClusterError, match=r"job=digest is one process.*job\.rank and job\.world_size"):
        main(config(*JOB))
