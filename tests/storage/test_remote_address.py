"""Remote addresses: what they name, what is refused, and what of them may be shown."""

import pickle

import pytest

from flodl_pipe.errors import SourceError
from flodl_pipe.storage.address import local_path, require_one_kind
from flodl_pipe.storage.remote_address import RemoteAddress, is_remote, redacted
from flodl_pipe.storage.remote_errors import scrubbed


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("s3://bucket/a/b%20c d.npy", ("s3", "bucket", "a/b%20c d.npy", "")),
        ("s3://bucket/what?#x.npy", ("s3", "bucket", "what?#x.npy", "")),
        ("gs://bucket/a/", ("gs", "bucket", "a/", "")),
        ("az://container/k", ("az", "container", "k", "")),
        ("S3://bucket", ("s3", "bucket", "", "")),
        ("http://host:81/a%20b/c.npy?raw=1&x=2#part", ("http", "host:81", "a b/c.npy", "raw=1&x=2")),
        ("HTTPS://host/a+b", ("https", "host", "a+b", "")),
    ],
)
def test_an_address_is_taken_apart(address: str, parts: tuple[str, ...]) -> None:
    found = RemoteAddress.parse(address)
    assert (found.scheme, found.place, found.key, found.query) == parts


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("ftp://host/x", "ftp:// is not served; use s3://"),
        ("s3:///x", "no bucket after s3://"),
        ("az://", "no container after az://"),
        ("http:///x", "the host or its port cannot be understood"),
        ("http://host:port/x", "the host or its port cannot be understood"),
        ("s3://b/a//b", "the part '' between two slashes"),
        ("s3://b/../b", "the part '..'"),
        ("https://h/./x", "the part '.'"),
        ("https://h/a%2Fb", "an escaped slash"),
    ],
)
def test_an_address_that_cannot_be_asked_for_is_refused(address: str, says: str) -> None:
    with pytest.raises(SourceError) as caught:
        RemoteAddress.parse(address)
    assert says in str(caught.value)
    assert str(caught.value).startswith(address)


@pytest.mark.parametrize(
    "address",
    [
        "https://me:hunter2@host/x.npy",
        "s3://id:hunter2@bucket/x.npy",
        "https://host/x.npy?X-Amz-Signature=hunter2&X-Amz-Expires=60",
        "https://host/x.npy?part=1&sig=hunter2",
        "https://host/x.npy?access_token=hunter2",
        "https://host/x.npy?api_key=hunter2",
        "https://host/x.npy?Key-Pair-Id=hunter2",
    ],
)
def test_an_address_that_holds_a_login_is_refused_without_showing_it(address: str) -> None:
    with pytest.raises(SourceError, match="credentials come from the environment only") as caught:
        RemoteAddress.parse(address)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in redacted(address)
    assert caught.value.__cause__ is None


def test_a_login_with_a_slash_is_not_shown() -> None:
    with pytest.raises(SourceError) as caught:
        RemoteAddress.parse("https://me:hun/ter2@host/x.npy")
    assert str(caught.value).startswith("https://host/x.npy: ")
    assert "hun" not in str(caught.value)


def test_the_values_of_a_query_are_sent_and_never_shown() -> None:
    found = RemoteAddress.parse("https://host/x.npy?id=hunter2&raw")
    assert found.full == "https://host/x.npy?id=hunter2&raw"
    assert found.shown == "https://host/x.npy?id=...&raw=..."
    assert "hunter2" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found
    assert redacted("https://h?id=hunter2") == "https://h?id=..."


def test_a_client_text_is_shown_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")
    text = "Error performing GET http://me:pw@h/x?sig=abc, key hunter2hunter2 refused\nDebug source:\n more"
    assert scrubbed(text) == "Error performing GET http://h/x?..., key <AWS_SECRET_ACCESS_KEY> refused"


def test_local_and_remote_places_are_told_apart_and_not_mixed() -> None:
    assert [is_remote(one) for one in ("a:b", "/a", "file:///a", "FILE://x", "s3://b/k")] == [False] * 4 + [True]
    with pytest.raises(SourceError, match="names /a on this machine and https://h/x elsewhere; give local places only"):
        require_one_kind(["https://me:pw@h/x", "/a"])
    with pytest.raises(SourceError, match="s3://b/k: a place on this machine is needed here"):
        local_path("s3://b/k")
