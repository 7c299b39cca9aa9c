"""What a plan says, and that it says it without doing anything.

White box: the ledger and the pool of slots are made to refuse, whoever asks them.
"""

import threading

import pytest

from flodl_pipe.errors import ConfigError, StagingError
from flodl_pipe.jobs.plan import main
from flodl_pipe.memory.ledger import process_ledger
from flodl_pipe.pipeline import build_loader
from tests.jobs.composed import composed


def test_the_source_and_its_steps_are_told(table, config, tokens):
    tokens(1000 - 8)
    value, rows = table(main, config())
    assert value is None
    assert rows["kind"] == "token_shards"
    assert rows["tokens"] == "992 uint16"
    assert rows["samples"] == "123"
    assert rows["stored"] == "tokens uint16 9; 18 B a row"
    assert rows["delivered"] == "input int64 8, target int64 8; 128 B a row"
    assert rows["order"].startswith("uniform ")
    assert rows["order"].endswith(" picks=123 seed=42")
    assert rows["batch"] == "4 rows (loader.batch_size), 4.00 KiB delivered"
    assert rows["steps an epoch"] == "30"
    assert (
        rows["last batch"]
        == "the last 3 samples of each epoch fill no batch and are left out (sampling.drop_last=true)"
    )


@pytest.mark.parametrize(
    ("drop_last", "words"),
    [
        ("false", "the last batch of each epoch has 3 samples"),
        ("pad", "the last batch of each epoch has 3 samples, and 1 from the epoch's head that batch.valid marks"),
    ],
)
def test_the_last_batch_is_told(table, config, tokens, drop_last, words):
    tokens(1000 - 8)
    _, rows = table(main, config(f"sampling.drop_last={drop_last}"))
    assert rows["steps an epoch"] == "31"
    assert rows["last batch"] == f"{words} (sampling.drop_last={drop_last})"


def test_an_epoch_that_divides_leaves_nothing_out(table, config):
    _, rows = table(main, config())
    assert rows["last batch"] == "every batch is full"


def test_the_plan_is_what_the_loader_does(table, config):
    for overrides in ((), ("loader.mode=streaming",), ("loader.readers=0",), ("loader.prefetch=7",)):
        cfg = config(*overrides)
        _, rows = table(main, cfg)
        with build_loader(cfg) as loader:
            plan = loader.plan
            assert rows["mode"].startswith(f"{plan.mode}: ")
            assert f": {plan.num_slots} batches" in rows["ring"]
            assert rows["steps an epoch"] == str(loader.num_batches)
            assert rows["fingerprint"].split()[0] in str(loader.state_dict()["source"])
            assert rows["order"] == loader.state_dict()["order"]


def test_resident_reads_once(table, config):
    _, rows = table(main, config())
    assert rows["resident set"] == "1.95 KiB (2,000 bytes)"
    assert rows["first epoch reads"].startswith("1.95 KiB, front to back, and the batches before that is done")
    assert rows["later epochs read"] == "nothing: batches are gathered from memory"


def test_streaming_reads_every_epoch(table, config):
    _, rows = table(main, config("loader.mode=streaming", "loader.sample_cache=false"))
    assert rows["resident set"] == "none"
    assert rows["RAM cache"] == "off: loader.sample_cache=false"
    assert rows["first epoch reads"] == rows["later epochs read"] == "2.18 KiB, row by row"  # 124 rows of 18 bytes


def test_no_readers_means_reading_in_the_loop(table, config):
    _, rows = table(main, config("loader.readers=0"))
    assert rows["readers"] == "none: the training loop reads inside next()"
    assert rows["first epoch reads"] == "1.95 KiB, front to back"


def test_knobs_without_effect_are_told(table, config):
    _, rows = table(main, config("loader.vram_max_usage=0.75"))
    assert rows["loader.vram_max_usage"] == "0.75, checked; no effect on a CPU"
    _, rows = table(
        main,
        config(
            *("loader.global_batch_size=8", "loader.readers=0", "loader.prefetch=3", "sampling.shuffle=false"),
            "source.if_missing=sample",
        ),
    )
    assert rows["batch"].startswith("8 rows (loader.global_batch_size)")
    assert rows["loader.batch_size"] == "4, no effect: loader.global_batch_size decides"
    assert rows["loader.prefetch"] == "3, no effect: without readers nothing is read ahead"
    assert rows["sampling.seed"] == "42, no effect on the order: sampling.shuffle=false"
    assert rows["source.if_missing"] == "sample, no effect: source.path is set"


def test_a_plan_takes_no_memory_and_starts_no_thread(config, monkeypatch, tmp_path):
    before = threading.active_count(), process_ledger().held_bytes

    def refuse(*args, **kwargs):
        raise AssertionError("a plan must not do this")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr("flodl_pipe.memory.ledger.Ledger.take", refuse)
    monkeypatch.setattr("flodl_pipe.loader.slots.SlotPool.__init__", refuse)
    files = sorted(tmp_path.iterdir())
    main(config())
    assert (threading.active_count(), process_ledger().held_bytes) == before
    assert sorted(tmp_path.iterdir()) == [tmp_path / "part-0.bin", *files]


def test_what_a_run_refuses_is_refused(config, tokens):
    with pytest.raises(ConfigError, match="an epoch would have no batch"):
        main(config("loader.batch_size=125"))
    tokens(10_000_000)
    with pytest.raises(StagingError, match=r"loader\.mode=resident, but the whole set takes"):
        main(config("loader.mode=resident", "loader.ram_max_usage=0"))


def test_records_are_told(table, tmp_path):
    (tmp_path / "data.rec").write_bytes(bytes(4 * 3073))
    cfg = composed(
        *("source=records", "source.path=data.rec", "source.record_bytes=3073", "loader.batch_size=2"),
        "source.fields={label: {offset: 0, dtype: uint8}, image: {offset: 1, dtype: uint8, shape: [3, 32, 32]}}",
    )
    _, rows = table(main, cfg)
    assert rows["kind"] == "records"
    assert rows["stored"] == "record uint8 3073; 3.00 KiB a row"
    assert rows["delivered"] == "label uint8, image uint8 3x32x32; 3.00 KiB a row"


def test_a_plan_fits_behind_the_command_line_of_a_run(call, tokens):
    run = [
        "source.path=part-0.bin",
        "source.dtype=uint16",
        "source.format=raw",
        "source.seq_len=8",
        "loader.batch_size=4",
    ]
    tokens()
    status, out, err = call(*run, "job.epochs=2", "job.max_steps=9", "job.save=a.json", "job=plan")
    assert status == 0, err
    assert "steps an epoch" in out


@pytest.mark.full
def test_a_plan_says_when_a_part_of_a_mixture_is_used_up(call):
    part = "{source: {kind: token_shards, if_missing: sample, format: raw, seq_len: 256}, weight: 1, max_epochs: 1}"
    words = ["source=mixture", f"source.parts={{a: {part}, b: {part}}}", "loader.batch_size=4", "job=plan"]
    status, _, err = call(*words)
    assert status == 0, err
    status, _, err = call(*words, "job.epochs=2")
    assert status == 2
    assert "max_epochs" in err
