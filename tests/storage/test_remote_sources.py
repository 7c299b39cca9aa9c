"""The file-based sources over remote data: the same samples, digests and errors as over local files."""

import multiprocessing
import queue as queues

import numpy as np
import pytest

from flodl_pipe.config.compose import load_config
from flodl_pipe.errors import SourceError
from flodl_pipe.pipeline import build_loader
from flodl_pipe.sources.records import RecordPart, Records
from flodl_pipe.sources.tokens import TokenShards
from tests.contract.sources import SourceContract, read_stored
from tests.storage.servers import nginx
from tests.support import programs

SEQ_LEN = 16
LENGTHS = (3_000, 700, 1_500)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A web server; yields its folder and its address."""
    root = tmp_path_factory.mktemp("root")
    with nginx(root, tmp_path_factory.mktemp("server")) as address:
        yield root, address


def shards(folder):
    """Write raw shards of uint16; returns their ids."""
    ids = [np.random.default_rng(n).integers(0, 60_000, length).astype("<u2") for n, length in enumerate(LENGTHS)]
    for number, one in enumerate(ids):
        (folder / f"part-{number}.bin").write_bytes(one.tobytes())
    return ids


def addresses(site, folder):
    root, address = site
    return [f"{address}/{folder.relative_to(root)}/part-{number}.bin" for number in range(len(LENGTHS))]


def send_error(source, indices, queue):
    try:
        read_stored(source, indices)
        queue.put("read")
    except SourceError as error:
        queue.put(str(error))


class TestRemoteTokens(SourceContract):
    @pytest.fixture(autouse=True)
    def _site(self, site, monkeypatch):
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        self.site = site

    def make_source(self, folder):
        served = self.site[0] / folder.name
        served.mkdir(exist_ok=True)
        self.ids = shards(served)
        return TokenShards.open(addresses(self.site, served), seq_len=SEQ_LEN, dtype="uint16")

    def expected(self, source, index):
        for ids in self.ids:
            count = (len(ids) - 1) // SEQ_LEN
            if index < count:
                window = ids[index * SEQ_LEN : (index + 1) * SEQ_LEN + 1].astype(np.int64)
                return {"input": window[:-1], "target": window[1:]}
            index -= count
        raise AssertionError

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # on purpose: that is what is tested
    def test_a_forked_child_reads_the_same(self, source, some):
        """The client's threads do not follow a fork, so here the child gets an error instead of rows, at once."""
        wanted = read_stored(source, some)
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=send_error, args=(source, some, queue))
        child.start()
        try:
            assert "do not follow a fork" in queue.get(timeout=120)
        except queues.Empty:
            child.kill()
            raise
        child.join()
        np.testing.assert_array_equal(read_stored(source, some)["tokens"], wanted["tokens"])


def test_tokens_have_the_fingerprint_of_the_local_files(site, tmp_path):
    served = site[0] / "same"
    served.mkdir()
    shards(served)
    shards(tmp_path)
    remote = TokenShards.open(addresses(site, served), seq_len=SEQ_LEN, dtype="uint16")
    local = TokenShards.open(str(tmp_path), seq_len=SEQ_LEN, dtype="uint16")
    for full in (False, True):
        assert remote.fingerprint(full=full) == local.fingerprint(full=full)
    assert remote.facts()[0].value.endswith(f"first {addresses(site, served)[0]}")


def test_records_are_read(site):
    data = np.random.default_rng(0).integers(0, 256, (500, 33), dtype=np.uint8)
    (site[0] / "records.bin").write_bytes(bytes(7) + data.tobytes())
    parts = {"label": RecordPart(0, "uint8"), "image": RecordPart(1, "uint8", (4, 8))}
    source = Records.open(f"{site[1]}/records.bin", record_bytes=33, header_bytes=7, parts=parts)
    some = np.random.default_rng(1).integers(0, 500, 60)
    np.testing.assert_array_equal(read_stored(source, some)["record"], data[some])
    out = source.delivered.empty(60)
    source.deliver(read_stored(source, some), out)
    np.testing.assert_array_equal(out["image"].reshape(60, -1), data[some, 1:])


SMALL = ("source.seq_len=16", "loader.batch_size=8")


def digest_of(path):
    with build_loader(load_config("remote_shards", path, *SMALL), keep_digest=True) as loader:
        for epoch in range(2):
            for _ in loader.epoch(epoch):
                pass
        return loader.statistics().digest


def test_the_recipe_has_the_digest_of_the_local_files(site, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    served = site[0] / "recipe"
    served.mkdir()
    shards(served)
    local = ",".join(str(served / f"part-{number}.bin") for number in range(len(LENGTHS)))
    remote = ",".join(addresses(site, served))
    assert digest_of(f"source.path=[{remote}]") == digest_of(f"source.path=[{local}]")


def run(argv, folder):
    words = ["-m", "flodl_pipe", "+recipe=remote_shards", *argv]
    done = programs.run(words, cwd=folder, env=programs.environment(NO_PROXY="127.0.0.1", COLUMNS="1000"))
    return done.returncode, done.stdout, done.stderr


@pytest.mark.full
def test_the_recipe_runs_and_plans(site, tmp_path):
    served = site[0] / "program"
    served.mkdir()
    shards(served)
    path = f"source.path=[{','.join(addresses(site, served))}]"
    status, out, err = run([path, *SMALL, "reports.progress=false", "job.epochs=2"], tmp_path)
    assert status == 0, err
    assert "finished, 2 epochs" in out
    status, out, err = run([path, *SMALL, "job=plan"], tmp_path)
    assert status == 0, err
    assert addresses(site, served)[0] in out


@pytest.mark.full
def test_the_program_needs_a_path_and_says_what_is_not_there(site, tmp_path):
    status, _, err = run([], tmp_path)
    assert (status, "source.path: required" in err) == (2, True)
    status, _, err = run([f"source.path={site[1]}/nowhere.bin"], tmp_path)
    assert status == 2
    assert f"{site[1]}/nowhere.bin: does not exist: the server says 404 Not Found" in err
    assert "Traceback" not in err


def test_the_recipe_says_what_is_not_there(site, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(SourceError, match=r"/nowhere\.bin: does not exist: the server says 404 Not Found"):
        digest_of(f"source.path={site[1]}/nowhere.bin")
