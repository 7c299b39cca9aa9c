"""That ``job=verify`` passes what is right, and finds and locates what is not."""

import itertools
import logging
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from flodl_pipe.config.compose import load_config
from flodl_pipe.config.job import VerifyJob
from flodl_pipe.config.places import recipe_dirs
from flodl_pipe.errors import ClusterError
from flodl_pipe.jobs import digest, verify_ranks
from flodl_pipe.jobs.verify import main
from flodl_pipe.jobs.verify_combinations import WAYS

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
RECIPES = sorted(file.stem for file in recipe_dirs()[-1][1].glob("*.yaml") if file.stem != "remote_shards")
# Of this choice the first seven combinations have all ways, readers and world sizes, and the first ones are small.
JOB = ("job=verify", "reports.progress=false", "job.max_s=null", "job.choice=1")


@pytest.fixture
def verify(table, config):
    """Run the job on 124 windows of tokens, 15 steps of 8 an epoch; returns the printed rows."""
    words = (*JOB, "loader.batch_size=8", "job.max_combinations=1")
    return lambda *overrides: table(main, config(*words, *overrides))[1]


@pytest.fixture
def found(config, capsys):
    """Run the job, which must end with status 1; returns what it says on standard error."""

    def run(*overrides):
        with pytest.raises(SystemExit) as stop:
            main(config(*JOB, "loader.batch_size=8", "job.max_combinations=60", *overrides))
        assert stop.value.code == 1
        return capsys.readouterr().err

    return run


class Altered:
    """A loader whose batches, states or digests are changed on the way out."""

    def __init__(self, loader, batch=None, state=None, statistics=None, num_batches=None):
        self._loader, self._batch, self._state, self._statistics = loader, batch, state, statistics
        self._num_batches = num_batches

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._loader.close()

    def __iter__(self):
        return (self._batch(b) if self._batch else b for b in itertools.islice(self._loader, self._num_batches))

    def load_state_dict(self, state):
        self._loader.load_state_dict(self._state(state) if self._state else state)

    def statistics(self):
        counted = self._loader.statistics()
        return self._statistics(counted) if self._statistics else counted


@pytest.fixture
def alter(monkeypatch):
    """Have the loaders that a rule chooses altered: ``rule(config, context) -> dict of changes, or None``."""
    build = verify_ranks.build_loader

    def alter(rule):
        def built(cfg, *, keep_digest=False, context, source=None):
            changes = rule(cfg, context)
            loader = build(cfg, keep_digest=keep_digest, context=context, source=source)
            return loader if changes is None else Altered(loader, **changes)

        monkeypatch.setattr(verify_ranks, "build_loader", built)

    return alter


@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=[] if name == "cifar10_disk" else [pytest.mark.full]) for name in RECIPES]
)
def test_every_recipe_passes(recipe, table, tmp_path, monkeypatch):
    shutil.copy(EXAMPLES / "squares.py", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = (recipe, *(["allow_import=[squares]"] if recipe == "custom" else []), "job.max_steps=6")
    try:
        _, printed = table(main, load_config(*words, *JOB, "job.max_combinations=7"))
        _, wanted = table(digest.main, load_config(*words, "job=digest", "reports.progress=false"))
    finally:
        sys.modules.pop("squares", None)
    assert printed["hash"].split()[0] == wanted["digest"]
    assert printed["combinations"].startswith("7 of 3,780")


def test_what_was_run_is_told(verify):
    printed = verify("job.max_combinations=7", "job.epochs=2", "loader.batch_size=16", "sampling.drop_last=pad")
    assert printed["combinations"].startswith("7 of 3,780; built anew ")
    assert printed["steps"] == "16 steps of 2 epochs, 2 ends of an epoch among them"
    assert [part.split(":")[0] for part in printed["ways"].split(", ")] == sorted(WAYS)
    assert "RAM cache " in printed["rows kept"]
    assert "sample pool " in printed["rows kept"]
    assert [part.split(":")[0] for part in printed["readers"].split(", ")] == ["0", "1", "4"]
    assert [part.split(":")[0] for part in printed["world sizes"].split(", ")] == ["1", "2", "3", "5", "8"]
    assert printed["3,593"].startswith("not chosen, job.max_combinations=7")
    assert printed["180"] == "cached: loader.readers=0: there is no thread to fill it"
    assert len(printed["hash"].split()[0]) == len(printed["batches"].split()[0]) == 32


def test_a_long_epoch_is_said_not_to_reach_its_end(verify):
    printed = verify("job.max_steps=5")
    assert printed["steps"].startswith("5 steps of the first epoch, no end of an epoch among them (job.max_steps=5;")


@pytest.mark.full
@pytest.mark.parametrize("drop_last", ["true", "false", "pad"])
def test_every_last_batch_passes(verify, drop_last):
    same = (f"sampling.drop_last={drop_last}", "loader.batch_size=11", "job.max_combinations=7")
    assert "hash" in verify(*same)


def test_the_hash_is_one_for_every_choice(verify):
    once, again = verify("job.max_steps=3"), verify("job.max_steps=3", "job.choice=2")
    assert (once["hash"], once["batches"]) == (again["hash"], again["batches"])
    assert once["hash"] != verify("job.max_steps=3", "sampling.seed=1")["hash"]


def test_what_cannot_be_run_is_told_with_its_reason(verify):
    printed = verify("loader.batch_size=4")
    assert printed["840"].startswith("loader.global_batch_size: the global batch of 4 is smaller than the 8 ranks")


def test_of_a_stream_nothing_is_kept_and_it_is_uploaded(table):
    words = ("text_stream", *JOB, "job.max_steps=2", "job.max_combinations=2", "job.choice=0")
    words += ("job.read_all=false",)
    _, printed = table(main, load_config(*words))
    assert printed["1,080"].startswith("loader.mode=resident, but a stream has no index")
    assert printed["540"].endswith(": a stream has no index, so no memory tier can hold its samples")
    assert printed["ways"] == "streaming: 1, uploaded: 1"
    assert "lanes are the same when read again" in printed["purity"]


def test_no_time_is_told(verify):
    printed = verify("job.max_combinations=8", "job.max_s=0.000001")
    assert printed["8"] == "no time for them within job.max_s=1e-06; null is no limit"
    assert printed["combinations"] == "0 of 3,780; built anew 0 times"


def test_another_order_in_one_world_is_located(alter, found):
    def reversed_rows(batch):
        batch.pick_keys = batch.pick_keys.rows(slice(None, None, -1))
        return batch

    alter(lambda _, context: {"batch": reversed_rows} if context.world_size == 5 else None)
    said = found("job.max_steps=5")
    assert said.startswith("flodl_pipe: the stream is not the same in combination ")
    assert "world=5" in said
    assert re.search(r"row \d+ of the global batch \(rank \d, its row 0\): got sample ", said)
    assert ", expected sample " in said


def test_a_resume_at_another_step_is_located(alter, found):
    alter(lambda *_: {"state": lambda state: {**state, "position": (state["position"] + 8) % 120}})
    said = found("job.epochs=1")
    assert ", resumed for the second leg at step " in said
    assert "epoch 0, step " in said


@pytest.mark.full
def test_a_damaged_row_in_one_mode_is_located_to_the_byte(alter, found, capsys):
    def damaged(batch):
        rows = np.flatnonzero(batch.pick_keys.sample == 7)
        batch["input"][rows, 3] ^= 1 << 8
        return batch

    alter(lambda cfg, _: {"batch": damaged} if cfg.loader.mode == "resident" else None)
    said = found("job.choice=0")
    assert "way=resident" in said
    assert "sample 7, field 'input': byte 25 of 64 is the first to differ: got 0x" in said


def test_a_damaged_row_of_a_simulated_device_is_located(alter, found):
    def damaged(batch):
        batch["input"][0, 0] ^= 1
        return batch

    alter(lambda cfg, _: {"batch": damaged} if cfg.loader.device == "simulated" and cfg.loader.vram_pool else None)
    said = found()
    assert "way=device pool" in said
    assert "field 'input': byte 0 of 64 is the first to differ" in said


def test_work_on_a_device_that_nothing_orders_is_a_difference(alter, found):
    from flodl_pipe.devices.simulated_order import Operation, OrderError
    from flodl_pipe.loader.targets import target_device

    def fault(cfg, _):
        if cfg.loader.device == "simulated":
            operation = Operation("a copy", "transfer", "here.py:1")
            target_device(cfg.loader).device.faults.append(OrderError(operation, operation, "block 1", True))

    alter(fault)
    assert "rank 0, on its simulated device: " in found()


def test_an_opaque_source_is_uploaded_and_never_kept(table, tmp_path, monkeypatch):
    (tmp_path / "own_texts.py").write_text(RAGGED)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("source=custom", "source.factory=own_texts:Docs", "source.ragged=[input]", "allow_import=[own_texts]")
    try:
        _, printed = table(
            main, load_config(*words, "loader.collate=pad", "loader.batch_size=8", *JOB, "job.max_combinations=4")
        )
    finally:
        sys.modules.pop("own_texts", None)
    assert {part.split(":")[0] for part in printed["ways"].split(", ")} >= {"streaming", "uploaded", "cached"}
    assert "device" not in [part.split(":")[0] for part in printed["ways"].split(", ")]


def test_a_wrong_weight_is_found(alter, found):
    def even(batch):
        batch.weight = 1.0
        return batch

    alter(lambda _, context: {"batch": even} if context.ratios is not None else None)
    assert "with these an average over ranks is not the mean over the global batch" in found()


def test_a_lost_batch_is_found(alter, found):
    alter(lambda cfg, _: {"num_batches": 5} if cfg.loader.readers == 4 else None)
    assert "rank 0 has no further batch in this epoch, and there is one" in found("job.max_steps=null", "job.epochs=1")


def test_a_digest_that_does_not_fit_the_batches_is_found(alter, found):
    from dataclasses import replace

    def another(counted):
        return replace(counted, digest="0" * 32)

    alter(lambda cfg, _: {"statistics": another} if cfg.loader.readers else None)
    assert "the batches are equal, and the digest of their stored rows is " in found()


def test_an_error_in_one_setting_is_a_difference(alter, found):
    def fails(batch):
        raise RuntimeError("the disk is gone")

    alter(lambda cfg, _: {"batch": fails} if cfg.loader.readers == 1 else None)
    assert "RuntimeError: the disk is gone" in found()


def test_last_digits_of_floats_may_differ_and_are_told(alter, table, tmp_path, monkeypatch, caplog):
    shutil.copy(EXAMPLES / "squares.py", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def rounded(factor):
        def change(batch):
            batch["y"].mul_(factor)
            return batch

        return change

    words = ("custom", "allow_import=[squares]", *JOB, "job.max_steps=3", "job.max_combinations=2")
    words += ("+source.args.num_samples=64", "loader.batch_size=16")
    try:
        alter(lambda cfg, _: {"batch": rounded(1 + 2e-7)} if cfg.loader.readers == 4 else None)
        _, printed = table(main, load_config(*words))
        assert "within the tolerance" in printed["note"]
        alter(lambda cfg, _: {"batch": rounded(1.001)} if cfg.loader.readers == 4 else None)
        with pytest.raises(SystemExit):
            main(load_config(*words))
    finally:
        sys.modules.pop("squares", None)


RAGGED = """
import numpy as np

class Docs:
    def __len__(self):
        return 60
    def __getitem__(self, index):
        return {"input": np.arange(index, index + 1 + 7 * index % 13), "label": index % 3}

def batches(source):
    return [list(range(at, min(at + 9, len(source)))) for at in range(0, len(source), 9)]
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["loader.collate=pad", "sampling.drop_last=false"], {}),
        pytest.param(
            ["loader.collate=ragged"],
            {"note": "not compared, because nested tensors have no rows of one size: field input"},
            marks=pytest.mark.full,
        ),
        pytest.param(
            ["loader.collate=pad", "sampling.augment=3"],
            {"steps": "22 steps of 1 epoch, 1 end of"},
            marks=pytest.mark.full,
        ),
        (["loader.batch_size=null", "source.subset={range: [0, 9]}"], {"world sizes": "1: 6"}),
        pytest.param(
            ["loader.collate=pad", "sampling.batch_sampler=own_texts:batches", "loader.batch_size=null"],
            {"batch": "9 rows over"},
            marks=pytest.mark.full,
        ),
    ],
)
def test_ragged_samples_pass(words, told, table, tmp_path, monkeypatch):
    (tmp_path / "own_texts.py").write_text(RAGGED)
    monkeypatch.syspath_prepend(str(tmp_path))
    given = ("source=custom", "source.factory=own_texts:Docs", "source.ragged=[input]", "allow_import=[own_texts]")
    try:
        _, printed = table(
            main, load_config(*given, "loader.batch_size=8", *JOB, "job.max_combinations=6", "job.epochs=1", *words)
        )
    finally:
        sys.modules.pop("own_texts", None)
    for name, text in told.items():
        assert printed[name].startswith(text)
    assert len(printed["hash"].split()[0]) == 32


PHOTOS = """
import numpy as np

class Photos:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        if index in (5, 77):
            raise OSError(f"photo {index} is cut off")
        return {"x": np.full(3, index, np.float32), "label": index % 4}
"""


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Words for a data set of which two samples are skipped."""
    (tmp_path / "photos.py").write_text(PHOTOS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield ("source=custom", "source.factory=photos:Photos", "source.on_error=skip", "allow_import=[photos]")
    sys.modules.pop("photos", None)


@pytest.mark.full
@pytest.mark.parametrize("drop_last", ["true", "false", "pad"])
def test_skipped_samples_pass_on_any_number_of_ranks(photos, drop_last, table):
    words = ("loader.batch_size=16", f"sampling.drop_last={drop_last}", *JOB, "job.max_combinations=7")
    _, printed = table(main, load_config(*photos, *words))
    assert "98 samples read" in printed["values"]
    assert "2 samples cannot be read and are skipped" in printed["values"]
    assert "5: " in printed["world sizes"]
    assert len(printed["hash"].split()[0]) == 32


def test_a_wrong_weight_is_found_where_samples_are_skipped(photos, alter, capsys):
    def even(batch):
        batch.weight = 1.0
        return batch

    alter(lambda _, context: {"batch": even} if context.world_size == 2 else None)
    with pytest.raises(SystemExit):
        main(load_config(*photos, "loader.batch_size=16", *JOB, "job.choice=0", "job.max_combinations=60"))
    assert "with these an average over ranks is not the mean over the global batch" in capsys.readouterr().err


@pytest.mark.full
def test_what_transforms_draw_is_the_same_however_rows_are_cut(table):
    flips = ("+transforms.f={kind: horizontal_flip}", "+transforms.t={kind: to_float}")
    words = (*JOB, "job.max_steps=3", "job.max_combinations=3", "loader.batch_size=16")
    _, printed = table(main, load_config("cifar10", *flips, *words))
    _, plain = table(main, load_config("cifar10", *words))
    assert printed["hash"] == plain["hash"]
    assert printed["batches"] != plain["batches"]


NOISY = """
import torch

def noisy(batch, keys):
    batch["image"].add_(torch.randint(0, 2, batch["image"].shape, dtype=torch.uint8))
    return batch

def mixed(batch, keys):
    return batch

mixed.scope = "batch"
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A recipe with a transform of the user's; returns the words for it."""
    (tmp_path / "own.py").write_text(NOISY)
    monkeypatch.syspath_prepend(str(tmp_path))

    def words(name):
        step = f"+transforms.own={{kind: function, path: 'own:{name}'}}"
        return ["cifar10", step, "allow_import=[own]", "loader.batch_size=16", *JOB, "job.max_steps=3"]

    yield words
    sys.modules.pop("own", None)


def test_a_transform_that_draws_from_torch_is_found(own, capsys):
    with pytest.raises(SystemExit):
        main(load_config(*own("noisy"), "job.max_combinations=5"))
    said = capsys.readouterr().err
    assert "the reference itself is not the same when it is read again" in said


def test_a_transform_of_whole_batches_leaves_out_several_ranks(own, table):
    _, printed = table(main, load_config(*own("mixed"), "job.max_combinations=3"))
    assert printed["world sizes"] == "1: 3"
    assert "scope" in printed["840"]


IMPURE = """
import numpy as np

class Impure:
    def __init__(self, after):
        self.reads, self.after = 0, after
    def __len__(self):
        return 40
    def __getitem__(self, index):
        self.reads += 1
        return {"x": np.float32(index + (self.reads if self.reads > self.after else 0))}

def make(after):
    return Impure(after)
"""


@pytest.mark.parametrize("after", [1, pytest.param(300, marks=pytest.mark.full)])
def test_an_impure_source_is_found(after, tmp_path, monkeypatch, capsys):
    (tmp_path / "impure.py").write_text(IMPURE)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("source=custom", "source.factory=impure:make", f"+source.args.after={after}", "allow_import=[impure]")
    try:
        with pytest.raises(SystemExit) as stop:
            main(
                load_config(
                    *words,
                    "loader.batch_size=8",
                    *JOB,
                    "job.max_combinations=20",
                    "job.epochs=80",
                    "job.max_steps=null",
                )
            )
    finally:
        sys.modules.pop("impure", None)
    assert stop.value.code == 1
    said = capsys.readouterr().err
    if after == 1:
        assert "the data fails the check of purity: sample " in said
        assert "field 'x' differ" in said
    else:
        assert "the stream is not the same in combination " in said


def test_ids_outside_the_vocabulary_are_found(found):
    said = found("source.vocab_size=50000")
    assert "flodl_pipe: the data fails the check of purity: " in said or "the check of values: " in said
    assert "is outside the vocabulary, 0 .. 49999" in said


def test_a_vocabulary_that_fits_is_told(verify):
    assert "ids are within 0 .. 59999" in verify("source.vocab_size=60000")["values"]
    assert "no limits are stated" in verify()["values"]
    assert verify("job.read_all=false")["values"] == "not looked at (job.read_all=false)"


@pytest.mark.full
def test_the_program_prints_80_columns_and_progress_elsewhere(call, tokens, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    tokens()
    words = ("source.path=part-0.bin", "source.dtype=uint16", "source.format=raw", "source.seq_len=8")
    status, out, err = call(*words, "loader.batch_size=4", "job=verify", "job.max_combinations=1", "job.choice=1")
    assert status == 0, err
    assert max(map(len, out.splitlines())) <= 80
    assert "verify: reading the reference" in err
    assert not list(tmp_path.glob("outputs"))


def test_warnings_are_said_once_and_nothing_is_left_behind(verify, caplog):
    log = logging.getLogger("flodl_pipe")
    filters = list(log.filters)
    with caplog.at_level(logging.INFO):
        verify("loader.global_batch_size=8")
    assert log.filters == filters
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == len(set(texts))


def test_limits_are_checked():
    assert VerifyJob(max_combinations="all", max_s=None).max_s is None
    for key, value, words in (
        ("max_combinations", "some", "must be 'all' or an integer of at least 1"),
        ("max_combinations", 0, "must be 'all' or an integer of at least 1"),
        ("max_combinations", True, "must be 'all' or an integer of at least 1"),
        ("max_s", 0, "must be 'auto', null or a number above 0"),
        ("max_s", "long", "must be 'auto', null or a number above 0"),
    ):
        with pytest.raises(ValueError, match=words):
            VerifyJob(**{key: value})


def test_under_torchrun_it_is_refused(config, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ClusterError, match=r"job=verify is one process.*makes the ranks itself"):
        main(config(*JOB))
