"""What a client says -> what the user is told."""

import pickle

import pytest

from flodl_pipe.errors import SourceError
from flodl_pipe.storage.remote_address import RemoteAddress
from flodl_pipe.storage.remote_errors import explain

S3 = RemoteAddress("s3", "bucket", "tokens/token_shards/a.npy")
WEB = RemoteAddress("https", "host", "a.npy", "id=hunter2")


def answered(status: str, body: str = "") -> Exception:
    return RuntimeError(
        "Generic S3 error: Error performing GET https://x/tokens/token_shards/a.npy?id=hunter2 in 3ms, after 2 retries"
        f", max_retries: 8 - Server returned non-2xx status code: {status}: {body}\n\nDebug source:\n hunter2"
    )


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            answered("400 Bad Request", "<Error><Code>ExpiredToken</Code></Error>"),
            r"400 Bad Request \(ExpiredToken\); set",
        ),
        (answered("400 Bad Request"), "access refused: the server says 400 Bad Request; set credentials"),
        (answered("403 Forbidden", "<Code>InvalidAccessKeyId</Code><AWSAccessKeyId>hunter2"), "AWS_ACCESS_KEY_ID"),
        (answered("404 Not Found"), "does not exist: the server says 404 Not Found; correct source.path"),
        (answered("301 Moved Permanently"), "check the region and the endpoint"),
        (answered("429 Too Many Requests"), "the server still says 429 Too Many Requests; try again later"),
        (answered("418 I'm a teapot"), "the server says 418"),
        (
            RuntimeError("Error performing PUT http://169.254.169.254/latest/api/token - kind: Timeout"),
            "no credentials",
        ),
        (RuntimeError("GET https://x/tokens/token_shards/a.npy - kind: Connect"), "cannot be reached"),
        (RuntimeError("GET https://x/credentials/a.npy - kind: Timeout"), "no answer within the time-out"),
        (RuntimeError("GET https://x/a.npy - kind: Request"), "ends the connection without an answer"),
        (RuntimeError("odd https://me:hunter2@x/y?sig=hunter2 thing"), r"RuntimeError: odd https://x/y\?\.\.\. thing"),
    ],
)
def test_the_answer_its_reason_and_the_remedy_are_said_and_no_secret(error: Exception, says: str) -> None:
    failure = explain(error, S3)
    with pytest.raises(SourceError, match=says):
        raise failure
    assert str(failure).startswith("s3://bucket/tokens/token_shards/a.npy: ")
    assert "hunter2" not in str(failure)


def test_a_web_server_gets_a_remedy_of_its_own() -> None:
    failure = explain(answered("401 Unauthorized"), WEB, "bytes 0 .. 9")
    assert str(failure).startswith("https://host/a.npy?id=..., bytes 0 .. 9: access refused: the server says 401")
    assert "http(s) addresses are read without a login" in str(failure)


def test_a_failure_travels_between_processes() -> None:
    failure = explain(answered("404 Not Found"), S3)
    copy = pickle.loads(pickle.dumps(failure))
    assert isinstance(copy, SourceError)
    assert str(copy) == str(failure)
