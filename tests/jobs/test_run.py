"""Draining a pipeline: how far it goes, what it reports, and that a resumed run is the run."""

import logging
import signal
from pathlib import Path

import numpy as np
import pytest

from flodl_pipe.errors import ConfigError, ResumeError, SourceError
from flodl_pipe.jobs.interrupt import Interrupt
from flodl_pipe.jobs.run import main
from flodl_pipe.keyed.digest import Digest, row_hashes
from tests.jobs.composed import composed

SAVE = ("job.save=place.json",)
SMALL = ("source.path=part-0.bin", "source.dtype=uint16", "source.seq_len=8", "loader.batch_size=4")


def expected_digest(path, epochs=1, batch=4):
    """The digest of whole batches of windows in storage order, worked out from the file's bytes."""
    ids = np.fromfile(path, dtype="<u2")
    windows = np.lib.stride_tricks.sliding_window_view(ids, 9)[::8]
    samples = np.arange(len(windows) // batch * batch)
    digest = Digest()
    for epoch in range(epochs):
        digest.add(
            row_hashes(
                [np.ascontiguousarray(windows[samples])],
                epoch=epoch,
                positions=samples,
                samples=samples,
                repeats=np.zeros(len(samples), dtype=np.int64),
            )
        )
    return digest.hex()


def test_an_epoch_of_given_files_is_delivered_whole(table, config, tokens):
    path = tokens()
    value, rows = table(main, config("sampling.shuffle=false"))
    assert rows["end"] == "finished, 1 epoch"
    assert rows["steps"] == "31"
    assert rows["samples"] == "124"
    assert rows["digest"] == expected_digest(path)
    assert rows["files"].replace(" ", "") == f"1(raw),first{path}"  # long paths wrap
    assert value > 0


def test_the_digest_covers_every_epoch(table, config, tokens):
    path = tokens()
    _, rows = table(main, config("sampling.shuffle=false", "job.epochs=3"))
    assert (rows["epoch"], rows["steps"]) == ("3 of 3", "93")
    assert rows["digest"] == expected_digest(path, epochs=3)


@pytest.mark.parametrize("loader", ["mode=streaming", "readers=0", "prefetch=1", "readers=3"])
def test_knobs_of_the_loader_do_not_change_the_digest(table, config, loader):
    _, plain = table(main, config("job.epochs=2"))
    _, other = table(main, config("job.epochs=2", f"loader.{loader}"))
    assert plain["digest"] == other["digest"]


def test_another_seed_changes_the_digest(table, config):
    _, one = table(main, config())
    _, other = table(main, config("sampling.seed=43"))
    assert one["digest"] != other["digest"]


@pytest.mark.parametrize(("steps", "epoch"), [(1, "1 of 2"), (31, "1 of 2"), (32, "2 of 2"), (62, "2 of 2")])
def test_max_steps_counts_over_epochs(table, config, steps, epoch):
    _, rows = table(main, config("job.epochs=2", f"job.max_steps={steps}"))
    assert (rows["steps"], rows["epoch"]) == (str(steps), epoch)
    assert rows["end"] == f"stopped at job.max_steps={steps}"


def test_epochs_end_a_run_before_a_larger_max_steps(table, config):
    _, rows = table(main, config("job.max_steps=1000"))
    assert rows["end"] == "finished, 1 epoch"
    assert rows["steps"] == "31"


def test_what_an_epoch_leaves_out_is_said(config, tokens, caplog):
    tokens(1000 - 8)
    with caplog.at_level(logging.INFO):
        main(config())
    assert (
        "123 samples, 30 steps of 4 rows an epoch; the last 3 samples of each epoch fill no batch and are left out "
        "(sampling.drop_last=true)" in caplog.text
    )


def test_the_table_tells_what_was_measured(table, config):
    _, rows = table(main, config("job.step_time_s=0.002"))
    assert rows["mode"].startswith("resident: the whole set takes 1.95 KiB")
    assert all(unit in rows["rate"] for unit in (" samples/s, ", " tokens/s, ", "B/s as stored"))
    assert rows["wait share"].endswith(" % of that time the loop waited for data")
    assert "Python and its libraries included" in rows["peak RSS"]
    assert "when the loop began" in rows["peak anonymous"]
    assert rows["granted"].startswith("ring ")
    assert rows["cursor"] == "not saved (job.save is not set)"
    assert rows["first batch"].startswith("after ")


def test_a_step_takes_the_time_it_pretends_to_compute(table, config, monkeypatch):
    slept = []
    sleep = Interrupt.sleep
    monkeypatch.setattr(Interrupt, "sleep", lambda self, seconds: (slept.append(seconds), sleep(self, seconds)))
    value, rows = table(main, config("job.max_steps=4", "job.step_time_s=0.05"))
    assert slept == [0.05] * 4
    took_s = 4 * 4 / value
    assert took_s >= 0.2
    # None of it counts as waiting for data, however long that took; the share is told to a tenth of a percent.
    assert float(rows["wait share"].split()[0]) <= 100 * (1 - 0.2 / took_s) + 0.1


def test_records_have_no_tokens(table, tmp_path):
    (tmp_path / "data.rec").write_bytes(bytes(range(64)))
    cfg = composed(
        *("source=records", "source.path=data.rec", "source.record_bytes=4", "loader.batch_size=4"),
        "source.fields={input: {offset: 0, dtype: uint8, shape: [4]}}",
    )
    _, rows = table(main, cfg)
    assert rows["samples"] == "16"
    assert "tokens/s" not in rows["rate"]


# ---- save and resume ------------------------------------------------------------------------------------------------


# Of 123 windows an epoch has 30 steps where the last batch is left out, and 31 where it is not. The second of two saves
# is one step after the first: they stand in an epoch, before and at its end, at and after it, and at the end of all.
PLACES = [
    *(("true", 1), ("true", 29), ("true", 30), ("true", 89), ("true", 93)),
    *(("false", 7), ("false", 30), ("false", 31), ("false", 92)),
    *(("pad", 30), ("pad", 31), ("pad", 61), ("pad", 92)),
]


@pytest.mark.parametrize(("drop_last", "first"), PLACES)
def test_a_resumed_run_is_the_run(table, config, tokens, first, drop_last):
    tokens(1000 - 8)  # 123 windows: the last batch is short
    run = ("job.epochs=3", f"sampling.drop_last={drop_last}")
    _, whole = table(main, config(*run))
    table(main, config(*run, *SAVE, f"job.max_steps={first}"))
    other = ("loader.readers=0", "loader.mode=streaming", "job.resume=place.json", *SAVE)
    table(main, config(*run, *other, f"job.max_steps={first + 1}"))
    _, rest = table(main, config(*run, "job.resume=place.json"))
    assert rest["digest"] == whole["digest"]
    done = min(first + 1, int(whole["steps"]))
    assert rest["steps"] == f"{whole['steps']} ({done} before, {int(whole['steps']) - done} now)"


def test_the_file_holds_place_and_digest_of_the_same_step(table, config, saved):
    digests = []
    for steps in (5, 10, 13):
        table(main, config("job.save=place.json", f"job.max_steps={steps}"))
        record = saved("place.json")
        assert (record["num_steps"], record["loader"]["position"], record["num_rows"]) == (steps, 4 * steps, 4 * steps)
        digests.append(record["digest"])
    # The same places, saved on the way by one run.
    seen = []
    import flodl_pipe.jobs.drain as module

    write = module.write_saved

    def spy(path, record):
        write(path, record)
        seen.append((record.num_steps, record.digest))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "write_saved", spy)
        table(main, config("job.save=place.json", "job.save_every_steps=5", "job.max_steps=13"))
    assert seen == list(zip((5, 10, 13), digests, strict=True))


def test_a_complete_run_says_so_and_changes_nothing(table, config, saved, caplog):
    _, whole = table(main, config(*SAVE))
    before = saved("place.json")
    with caplog.at_level(logging.INFO):
        value, rows = table(main, config("job.resume=place.json", *SAVE))
    assert value == 0.0
    assert rows["end"] == "nothing was left to do: the run was complete already, job.epochs=1"
    assert rows["steps"] == "31 (31 before, 0 now)"
    assert rows["digest"] == whole["digest"]
    assert saved("place.json") == before
    assert "nothing is left to do" in caplog.text


def test_more_epochs_continue_a_complete_run(table, config):
    _, whole = table(main, config("job.epochs=2"))
    table(main, config(*SAVE))
    _, rows = table(main, config("job.epochs=2", "job.resume=place.json"))
    assert rows["digest"] == whole["digest"]
    assert rows["steps"] == "62 (31 before, 31 now)"


def test_the_saved_global_batch_is_kept(table, config, caplog):
    _, whole = table(main, config())
    table(main, config(*SAVE, "job.max_steps=10"))
    _, rows = table(main, config("job.resume=place.json", "loader.batch_size=8"))
    assert rows["digest"] == whole["digest"]
    assert rows["steps"] == "31 (10 before, 21 now)"
    assert "resuming with the saved global batch of 4" in caplog.text


def test_one_path_for_both_starts_anew_once_and_says_so(table, config, caplog):
    both = ("job.resume=place.json", *SAVE)
    _, whole = table(main, config())
    with caplog.at_level(logging.INFO):
        table(main, config(*both, "job.max_steps=3"))
    assert "place.json is not there yet: the run starts anew" in caplog.text
    _, rows = table(main, config(*both))
    assert rows["digest"] == whole["digest"]
    assert rows["steps"] == "31 (3 before, 28 now)"


def test_a_new_run_over_an_old_place_is_said(table, config, caplog):
    table(main, config(*SAVE))
    table(main, config(*SAVE, "job.max_steps=1"))
    assert "holds the place of an earlier run and will be written over" in caplog.text


def test_a_place_of_another_run_is_said_when_resuming_from_elsewhere(table, config, caplog):
    table(main, config(*SAVE, "job.max_steps=3"))
    table(main, config("job.save=other.json", "job.max_steps=5"))
    assert "holds the place" not in caplog.text
    table(main, config(*SAVE, "job.resume=place.json"))
    assert "holds the place" not in caplog.text
    table(main, config(*SAVE, "job.resume=other.json"))
    assert "place.json holds the place of an earlier run and will be written over" in caplog.text


@pytest.mark.full
def test_every_job_of_a_sweep_that_saves_over_another_says_so(call, config):
    config()  # writes the shard
    status, out, _ = call(*SMALL, *SAVE, "job.max_steps=2", "-m", "sampling.seed=1,2,3")
    assert status == 0
    assert out.count("holds the place of an earlier run and will be written over") == 2


@pytest.mark.parametrize("first", [True, False])
def test_a_run_that_meets_the_save_of_another_says_so_once(config, monkeypatch, caplog, first):
    import flodl_pipe.jobs.drain as module

    slept = []

    def interfere(self, seconds):
        slept.append(seconds)
        if (len(slept) == 1 and first) or len(slept) in (5, 9):
            module.write_saved("place.json", module.SavedRun({}, "f" * 32, 4, len(slept)))

    run = (*SAVE, "loader.batch_size=12", "job.save_every_steps=1", "job.step_time_s=0.001")
    main(config(*run))
    main(config(*run, "job.resume=place.json", "job.epochs=2"))
    assert "meanwhile" not in caplog.text
    monkeypatch.setattr(module.Interrupt, "sleep", interfere)
    Path("place.json").unlink()
    main(config(*run))
    assert caplog.text.count("place.json was saved by another run meanwhile and is written over") == 1


@pytest.mark.parametrize("resume", [(), ("job.resume=place.json",)])
def test_a_save_never_replaces_data(config, tokens, saved, resume):
    before = Path(tokens()).read_bytes()
    main(config(*SAVE, "job.max_steps=2"))
    with pytest.raises(ConfigError, match=r"job\.save: .*part-0\.bin exists and is not a save of a run"):
        main(config("job.save=part-0.bin", *resume))
    assert Path("part-0.bin").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("sampling.seed=7", "order saved: uniform"),
        ("sampling.shuffle=false", "order now:   sequential"),
        ("source.seq_len=4", "data saved: token_shards"),
    ],
)
def test_another_stream_is_refused_with_both_sides(config, change, text):
    main(config(*SAVE, "job.max_steps=3"))
    with pytest.raises(ResumeError, match="this state belongs to another stream of samples") as caught:
        main(config("job.resume=place.json", change))
    assert text in str(caught.value)
    assert "place.json: " in str(caught.value)


def test_changed_data_is_refused(config, tokens):
    main(config(*SAVE, "job.max_steps=3"))
    tokens(seed=1)
    with pytest.raises(ResumeError, match="data saved: "):
        main(config("job.resume=place.json"))


def test_a_missing_file_to_resume_from_is_an_error(config):
    with pytest.raises(ResumeError, match=r"nowhere\.json: no such file; name a file that job\.save wrote"):
        main(config("job.resume=nowhere.json", *SAVE))


def test_a_save_that_cannot_be_written_is_found_out_at_once(config):
    with pytest.raises(ConfigError, match=r"job\.save: there is no folder .*/nowhere; make it, or save elsewhere"):
        main(config("job.save=nowhere/place.json"))


# ---- the ends of a run ----------------------------------------------------------------------------------------------


HANDLERS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@pytest.fixture
def usual():
    """Signals do what they usually do, whatever has started the tests: a run heeds none that is ignored or taken."""
    before = {number: signal.signal(number, usual) for number, usual in HANDLERS.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ends(number):
    """What a run ends with after a signal."""
    return pytest.raises(KeyboardInterrupt if number is signal.SIGINT else SystemExit)


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize("number", HANDLERS)
def test_a_signal_saves_the_place_and_ends_the_run_between_two_steps(table, config, capsys, saved, number):
    import flodl_pipe.jobs.drain as module

    _, whole = table(main, config())
    sleep = module.Interrupt.sleep
    slept = []

    def press(self, seconds):
        slept.append(seconds)
        if len(slept) == 6:
            signal.raise_signal(number)
        sleep(self, seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Interrupt, "sleep", press)
        with ends(number) as caught:
            main(config(*SAVE, "job.step_time_s=0.001"))
    if number is signal.SIGTERM:
        assert caught.value.code == 143
    assert {number: signal.getsignal(number) for number in HANDLERS} == HANDLERS
    out = capsys.readouterr().out
    assert "interrupted after 6 steps of 31; go on with" in out
    assert saved("place.json")["num_steps"] == 6
    _, rows = table(main, config("job.resume=place.json"))
    assert rows["digest"] == whole["digest"]


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize("second", HANDLERS)
@pytest.mark.parametrize("first", HANDLERS)
def test_a_second_signal_ends_at_once(config, monkeypatch, first, second):
    import flodl_pipe.jobs.drain as module

    def press(self, seconds):
        signal.raise_signal(first)
        signal.raise_signal(second)
        pytest.fail("went on")

    monkeypatch.setattr(module.Interrupt, "sleep", press)
    with ends(second):
        main(config("job.step_time_s=0.001"))
    assert {number: signal.getsignal(number) for number in HANDLERS} == HANDLERS


def test_a_handler_of_somebody_else_stays(config):
    noted = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: noted.append(number))
    try:
        mine = signal.getsignal(signal.SIGTERM)
        main(config())
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_terminated_program_prints_its_table_and_leaves_with_143(program, config, saved):
    main(config(*SAVE, "job.max_steps=3"))
    # A step of ten minutes, so that it is in one when the signal comes, however late that is.
    words = [*SMALL, *SAVE, "job.resume=place.json", "job.step_time_s=600"]
    with program(*words) as process:
        while "resumed from" not in (line := process.stdout.readline()):
            assert line, process.communicate()
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert "interrupted after 4 steps of 31" in out
    assert saved("place.json")["num_steps"] == 4
    assert "Traceback" not in err


def test_damaged_data_ends_the_run_after_the_place_before_it_was_saved(config, table, tokens, saved):
    path = tokens()
    limited = ("source.vocab_size=60000", "sampling.shuffle=false", "loader.mode=streaming")
    good = np.fromfile(path, dtype="<u2")
    bad = good.copy()
    bad[8 * 50] = 65000  # in window 50, step 12
    bad.tofile(path)
    with pytest.raises(SourceError, match="65000"):
        main(config(*limited, *SAVE))
    record = saved("place.json")
    assert (record["num_steps"], record["loader"]["position"]) == (12, 48)


def test_a_failed_save_stops_the_run_and_the_one_before_stays(config, saved, monkeypatch):
    import pathlib

    main(config(*SAVE, "job.max_steps=2"))
    before = saved("place.json")

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "replace", full)
    with pytest.raises(ResumeError, match=r"place\.json: the save at step \d+ could not be written \(No space left"):
        main(config("job.resume=place.json", *SAVE, "job.save_every_steps=3"))
    assert saved("place.json") == before
