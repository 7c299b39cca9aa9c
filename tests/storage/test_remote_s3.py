"""Objects of an S3-compatible store: listing by the rules of folders, reads, changes, and credentials."""

import logging
import pickle
import traceback
import urllib.parse

import numpy as np
import pytest

from flodl_pipe.errors import ChangedError, SourceError
from flodl_pipe.storage.listing import list_files
from flodl_pipe.storage.open import open_blobs
from flodl_pipe.storage.remote import RemoteBlobs
from flodl_pipe.storage.remote_patience import RemotePolicy
from tests.storage.servers import CREDENTIALS, kept_port, put, s3_server

DATA = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8)
QUICK = RemotePolicy(patience_s=0.3, opening_patience_s=0.3, first_backoff_s=0.02, longest_backoff_s=0.05)
KEYS = (
    *("d/part-10.npy", "d/part-2.npy", "d/B.npy", "d/.hidden.npy", "d/x.txt", "d/_SUCCESS", "d/sub/z.npy"),
    *(
        "d/",
        "d/sub/",
        "top.npy",
        "lit*.npy",
        "lit1.npy",
        "run [1]/a.npy",
        "run 1/b.npy",
        "e/.h/x.npy",
        "\u00e9 %20.npy",
    ),
)
NPY = (".npy",)
OUTSIDE = ("AWS_", "GOOGLE_", "AZURE_", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY")


@pytest.fixture(scope="module")
def endpoint():
    with s3_server(max_keys=20) as address:
        put(address, "bkt")
        for key in KEYS:
            put(address, f"bkt/{urllib.parse.quote(key)}", b"" if key.endswith("/") else DATA.tobytes())
        yield address


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    import os

    for name in os.environ:
        if name.startswith(OUTSIDE):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def store(endpoint, monkeypatch):
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)
    return endpoint


def keys(path):
    return [name.removeprefix("s3://bkt/") for name in list_files(path, suffixes=NPY).files]


@pytest.mark.parametrize("path", ["s3://bkt/d/", "s3://bkt/d"])
def test_a_folder_is_its_objects_by_code_point_without_hidden_and_foreign_ones(store, path):
    found = list_files(path, suffixes=NPY)
    assert found.files == ("s3://bkt/d/B.npy", "s3://bkt/d/part-10.npy", "s3://bkt/d/part-2.npy")
    assert found.foreign == ("_SUCCESS", "sub/", "x.txt")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s3://bkt/d/part-2.npy", ["d/part-2.npy"]),
        ("s3://bkt/d/x.txt", ["d/x.txt"]),
        ("s3://bkt/\u00e9 %20.npy", ["\u00e9 %20.npy"]),
        ("s3://bkt/lit*.npy", ["lit*.npy"]),  # it exists
        ("s3://bkt/lit?.npy", ["lit*.npy", "lit1.npy"]),
        ("s3://bkt/d/part-[0-9].npy", ["d/part-2.npy"]),
        ("s3://bkt/d/*", ["d/B.npy", "d/_SUCCESS", "d/part-10.npy", "d/part-2.npy", "d/x.txt"]),
        ("s3://bkt/d/**/*.npy", ["d/B.npy", "d/part-10.npy", "d/part-2.npy", "d/sub/z.npy"]),
        ("s3://bkt/*/*.npy", ["d/B.npy", "d/part-10.npy", "d/part-2.npy", "run 1/b.npy", "run [1]/a.npy"]),
        ("s3://bkt/run [1]/*.npy", ["run [1]/a.npy"]),  # the folder exists
        ("s3://bkt/run [1]", ["run [1]/a.npy"]),
        ("s3://bkt/run ?/*.npy", ["run 1/b.npy"]),
        (["s3://bkt/top.npy", "s3://bkt/run 1/"], ["top.npy", "run 1/b.npy"]),
    ],
)
def test_a_path_means_what_it_means_for_files(store, path, expected):
    assert keys(path) == expected


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("s3://bkt/none.npy", r"s3://bkt/none\.npy does not exist, neither as an object nor as a folder.*404"),
        ("s3://bkt/none/", r"no object ends in \.npy; nothing lies there"),
        ("s3://bkt/no*", r"s3://bkt/no\*: no object matches; correct the pattern"),
        ("s3://other-bucket/x", r"s3://other-bucket/x.*404 Not Found \(NoSuchBucket\)"),
        (["s3://bkt/d/", "s3://bkt/d/B.npy"], r"s3://bkt/d/B\.npy is named twice"),
    ],
)
def test_what_is_not_there_is_an_error(store, path, says):
    with pytest.raises(SourceError, match=says):
        list_files(path, suffixes=NPY)


def test_more_objects_than_one_answer_lists_are_all_found(store):
    names = [f"many/{number:02d}.npy" for number in range(50)]
    for name in names:
        put(store, f"bkt/{name}", b"x")
    assert keys("s3://bkt/many/") == names
    blobs = open_blobs([f"s3://bkt/{name}" for name in names])
    assert (blobs.sizes == 1).all()


def test_rows_are_read_and_changes_noticed(store):
    put(store, "bkt/own.bin", DATA.tobytes())
    blobs = open_blobs(["s3://bkt/own.bin", "s3://bkt/top.npy"])
    out = np.empty((3, 100), np.uint8)
    blobs.read_rows(np.array([0, 1, 0]), np.array([99_900, 7, 50]), 100, np.array([2, 0, 1]), out)
    for row, offset in enumerate([7, 50, 99_900]):
        np.testing.assert_array_equal(out[row], DATA[offset : offset + 100])
    blobs.check_unchanged()
    put(store, "bkt/own.bin", DATA[::-1].tobytes())
    for look in (blobs.check_unchanged, lambda: blobs.read_range(0, 50_000, np.empty(10, np.uint8))):
        with pytest.raises(
            ChangedError, match=r's3://bkt/own\.bin.*it was 100,000 bytes, ETag "\w+", now it is 100,000'
        ):
            look()


def failing(action):
    with pytest.raises(SourceError) as caught:
        action()
    text = "".join(traceback.format_exception(caught.value))
    assert "testing-secret" not in text
    assert "testing-id" not in text
    return str(caught.value)


def test_credentials_are_in_no_text_and_no_pickle(store, caplog):
    with caplog.at_level(logging.DEBUG):
        blobs = open_blobs(["s3://bkt/top.npy"])
        blobs.read_range(0, 0, np.empty(10, np.uint8))
    text = pickle.dumps(blobs)
    for secret in CREDENTIALS.values():
        assert secret.encode() not in text
        assert secret not in caplog.text
        assert secret not in repr(blobs)


def test_credentials_that_are_refused_are_an_error_that_names_the_variables(store, monkeypatch):
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    said = failing(lambda: RemoteBlobs(["s3://bkt/top.npy"], policy=QUICK))
    assert "s3://bkt/top.npy: access refused: the server says 403 Forbidden" in said
    assert "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN" in said


def test_missing_credentials_are_an_error(store, monkeypatch):
    """Where no variables say so, the client asks the machine's own service for them, which is not there."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with kept_port() as port:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{port}")
        assert "AWS_ACCESS_KEY_ID" in failing(lambda: RemoteBlobs(["s3://bkt/top.npy"], policy=QUICK))


def test_an_endpoint_without_encryption_must_be_allowed(store, monkeypatch):
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    assert "set AWS_ALLOW_HTTP=true" in failing(lambda: RemoteBlobs(["s3://bkt/top.npy"], policy=QUICK))


@pytest.mark.parametrize(
    ("address", "variables", "says"),
    [
        ("gs://b/x", {"GOOGLE_SERVICE_ACCOUNT_KEY": "no json, testing-secret"}, "GOOGLE_APPLICATION_CREDENTIALS"),
        ("gs://b/x", {"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere.json"}, "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://c/x", {}, "AZURE_STORAGE_ACCOUNT_NAME"),
        (
            "az://c/x",
            {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": "testing-secret"},
            "AZURE_STORAGE",
        ),
    ],
)
def test_other_stores_name_their_variables(monkeypatch, address, variables, says):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    said = failing(lambda: RemoteBlobs([address], policy=QUICK))
    assert said.startswith(f"{address}: cannot be opened: ")
    assert says in said
