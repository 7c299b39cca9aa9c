"""A config whose data lie in another folder."""

from flodl_pipe.config.compose import load_config
from flodl_pipe.config.host_paths import with_data_dir

PART = "{source: {kind: token_shards, seq_len: 8, path: '${data_dir}/%s/*.npy'}, weight: 1}"


def test_paths_made_from_data_dir_go_with_it():
    config = load_config(
        "data_dir=/data",
        "source.path=['${data_dir}/a*.npy', /data2/b.npy, /other/data/c.npy]",
        "source.seq_len=8",
        "+source.subset={indices: '${data_dir}/ids.npy'}",
        "sampling.order=weighted",
        "sampling.weights='${data_dir}/w.npy'",
        "loader.batch_size=1",
        "job.save='${data_dir}/run.json'",
    )
    moved = with_data_dir(config, "/scratch/")
    assert moved.data_dir == "/scratch/"
    assert moved.source.path == ["/scratch/a*.npy", "/data2/b.npy", "/other/data/c.npy"]
    assert moved.source.subset.indices == "/scratch/ids.npy"
    assert moved.sampling.weights == "/scratch/w.npy"
    assert moved.job.save == "/data/run.json", "is no data, and of one rank"
    assert (moved.loader, moved.cluster, moved.source.seq_len) == (config.loader, config.cluster, 8)
    assert config.source.path[0] == "/data/a*.npy", "the config itself stays as it is"


def test_parts_of_a_mixture_go_too():
    parts = f"source.parts={{a: {PART % 'a'}, b: {PART % 'b'}}}"
    config = load_config("source=mixture", parts, "loader.batch_size=1", "data_dir=/data")
    moved = with_data_dir(config, "s3://bucket/all")
    assert [part.source.path for part in moved.source.parts.values()] == [
        "s3://bucket/all/a/*.npy",
        "s3://bucket/all/b/*.npy",
    ]


def test_nothing_lies_in_the_root_folder():
    config = load_config("data_dir=/", "source.path=/a.npy", "source.seq_len=8", "loader.batch_size=1")
    assert with_data_dir(config, "/scratch").source.path == "/a.npy"
