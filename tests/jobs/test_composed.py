"""The configs that tests of jobs make without composing are those that composing makes."""

import pytest

from flodl_pipe.config.compose import load_config
from tests.jobs.composed import composed

TOKENS = ("source.seq_len=8", "loader.batch_size=4")


@pytest.mark.parametrize(
    "words",
    [
        (*TOKENS, "source.path='a b.bin'", "job.epochs=2", "job.save=run.json", "sampling.drop_last=pad"),
        (*TOKENS, "cluster.hosts=[{name: a, devices: 2, ratios: [3, 2]}]", "job=plan", "job.host_ram=1GiB"),
        (*TOKENS, "loader.device=simulated", "loader.simulated.memory_bytes=16MiB", "job=verify", "job.max_s=null"),
        (
            *("source=records", "source.path=a.rec", "source.record_bytes=4", "loader.batch_size=null"),
            "source.fields={x: {offset: 0, dtype: uint8, shape: [4]}}",
            *("sampling.batch_sampler=own:batches", "+sampling.sampler_args.rows=3", "allow_import=[own]"),
        ),
    ],
    ids=["run", "plan", "verify", "records"],
)
def test_it_is_what_composing_makes(words):
    assert composed(*words) == load_config(*words)
