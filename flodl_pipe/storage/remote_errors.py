"""What a store or its client says -> an error that names the address, the answer, and what to do.

The client's own texts hold whole request addresses and whatever the server put into its body, so they are never passed
on: the status, the error code and the kind of failure are picked out of them, and the rest is dropped.
"""

import os
import re
from typing import final

from flodl_pipe.errors import SourceError
from flodl_pipe.storage.remote_address import RemoteAddress
from flodl_pipe.units import format_duration

__all__ = ["RangeIgnored", "StoreError", "credential_remedy", "explain", "range_ignored", "scrubbed"]

_STATUS = re.compile(r"status code: (\d{3})(?: ([A-Za-z][A-Za-z -]*))?")
_CODE = re.compile(r"<Code>\s*([A-Za-z0-9_.-]{1,60})\s*</Code>")
_KIND = re.compile(r"kind: (Timeout|Connect|Interrupted|Request|Decode|Unknown)\b")
_RANGES = re.compile(r"Requested (\d+)\.\.(\d+), got (\d+)\.\.(\d+)")
# Where credentials are asked for when the environment has none, and how the client says that it has none.
_NO_CREDENTIALS = re.compile(
    r"//(169\.254\.169\.254|\[?fd00:ec2::254|metadata\.google\.internal|oauth2\.googleapis\.com"
    r"|login\.microsoftonline\.com|sts\.[a-z0-9.-]*amazonaws)|PUT \S+/latest/api/token|performing token request"
    r"|error: (GCP )?[Cc]redential"
)
_SECRET_NAME = re.compile(r"(AWS|GOOGLE|AZURE)_.*(KEY|SECRET|TOKEN|PASSWORD|SAS).*")
_CREDENTIAL_CODES = {
    *(
        "AccessDenied",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    ),
    *("AuthenticationFailed", "AuthorizationFailure", "NoAuthenticationInformation", "RequestTimeTooSkewed"),
}

_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN (for temporary ones), AWS_REGION and "
    "AWS_ENDPOINT_URL are read, or a role of the machine (AWS_WEB_IDENTITY_TOKEN_FILE, "
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI); AWS_SKIP_SIGNATURE=true reads a public bucket; profiles and "
    "~/.aws are not read",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT (a path) or GOOGLE_SERVICE_ACCOUNT_KEY is read, or "
    "the machine's service account; GOOGLE_SKIP_SIGNATURE=true reads a public bucket",
    "az": "AZURE_STORAGE_ACCOUNT_NAME is read, with AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, or "
    "AZURE_STORAGE_CLIENT_ID, AZURE_STORAGE_CLIENT_SECRET and AZURE_STORAGE_TENANT_ID; "
    "AZURE_SKIP_SIGNATURE=true reads a public container",
}


@final
class StoreError(SourceError):
    """A request that failed.

    Attributes:
        status: HTTP status of the answer; 0 when there was none.
        retryable: Whether asking once more may help: the server is busy, or away, or the answer broke off.
    """

    def __init__(self, message: str, status: int = 0, retryable: bool = False) -> None:
        super().__init__(message)
        self.status, self.retryable = status, retryable

    def given_up(self, tries: int, seconds: float) -> "StoreError":
        """Return this error with how often and how long it was tried."""
        count = f"{tries} tries" if tries > 1 else "1 try"
        return StoreError(f"{self}; given up after {count} in {format_duration(seconds)}", self.status)

    def __reduce__(self) -> tuple[type[SourceError], tuple[str]]:
        return SourceError, (str(self),)


@final
class RangeIgnored(Exception):  # noqa: N818 - a signal between two functions, not a failure
    """The server sent the whole object where a range was asked."""


def credential_remedy(scheme: str) -> str:
    """Return which environment variables give access to a kind of store, by name."""
    if scheme in _VARIABLES:
        return f"set credentials in the environment: {_VARIABLES[scheme]}"
    return (
        "http(s) addresses are read without a login; make the object public to this machine, or use s3://, gs://, az://"
    )


def scrubbed(text: str) -> str:
    """Return the first line of a client's text without queries, logins and the secrets of the environment."""
    line = text.partition("\n")[0]
    for name, value in os.environ.items():
        if len(value) >= 4 and _SECRET_NAME.fullmatch(name):
            line = line.replace(value, f"<{name}>")
    line = re.sub(r"(://)[^/\s@]*@", r"\1", line)
    return re.sub(r"\?[^\s,)]*", "?...", line)[:300]


def range_ignored(error: Exception) -> bool:
    """Return whether a request failed because the server sent the whole object instead of the range."""
    return "RangeNotSupported" in str(error)


def explain(error: Exception, address: RemoteAddress, what: str = "") -> StoreError:
    """Return the error to raise for what the client raised.

    Args:
        error: The client's exception.
        address: Object, or folder, that was asked for.
        what: Which part of it, for example ``bytes 0 .. 100``; may be empty.
    """
    text, shown = str(error), f"{address.shown}{f', {what}' if what else ''}"
    status = int(match[1]) if (match := _STATUS.search(text)) else 404 if isinstance(error, FileNotFoundError) else 0
    code = match[1] if (match := _CODE.search(text)) else ""
    said = " ".join(filter(None, [str(status or ""), _phrase(text), f"({code})" if code else ""]))
    kind = match[1] if (match := _KIND.search(text)) else ""
    if status == 404:
        return StoreError(f"{shown}: does not exist: the server says {said}; correct source.path", status)
    refused = status in (401, 403) or code in _CREDENTIAL_CODES or (status == 400 and address.scheme in _VARIABLES)
    if refused:
        return StoreError(
            f"{shown}: access refused: the server says {said}; {credential_remedy(address.scheme)}", status
        )
    if address.scheme in _VARIABLES and _NO_CREDENTIALS.search(text):
        return StoreError(
            f"{shown}: no credentials were found, or they cannot be used; {credential_remedy(address.scheme)}", status
        )
    if status >= 500 or status in (408, 429):
        return StoreError(
            f"{shown}: the server still says {said}; try again later, or lower the load on it", status, retryable=True
        )
    if 300 <= status < 400:
        return StoreError(
            f"{shown}: the server says {said}, and names no other place; check the region and the endpoint "
            "(AWS_REGION, AWS_ENDPOINT_URL)",
            status,
        )
    if status:
        return StoreError(f"{shown}: the server says {said}; correct source.path or the server's settings", status)
    if match := _RANGES.search(text):
        return StoreError(
            f"{shown}: the server answered a request for bytes {match[1]} .. {match[2]} with bytes {match[3]} .. "
            f"{match[4]}; such a server cannot be read from in parts: copy the data, or serve it otherwise"
        )
    if "builder error" in text:
        allow = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}.get(address.scheme)
        remedy = f"if the endpoint is meant to be http://, set {allow}=true" if allow else "correct the address"
        return StoreError(f"{shown}: the request cannot be made; {remedy}")
    if "MissingContentLength" in text:
        return StoreError(
            f"{shown}: the server does not say how long it is (no Content-Length); serve it as a plain file"
        )
    if "response body error" in text:
        how = "did not come within the time-out" if kind == "Timeout" else "broke off before its end"
        return StoreError(f"{shown}: the answer {how}; check the server and the network", retryable=True)
    if kind == "Timeout":
        return StoreError(f"{shown}: no answer within the time-out; check the server and the network", retryable=True)
    if kind == "Connect":
        return StoreError(
            f"{shown}: the server cannot be reached; check its name, the network, HTTPS_PROXY and the endpoint "
            "variables",
            retryable=True,
        )
    if kind in ("Interrupted", "Request"):
        return StoreError(
            f"{shown}: the server ends the connection without an answer; check the server and the network",
            retryable=True,
        )
    return StoreError(f"{shown}: cannot be read: {type(error).__name__}: {scrubbed(text)}; check the address")


def _phrase(text: str) -> str:
    match = _STATUS.search(text)
    return (match[2] or "").strip() if match else "Not Found" if "not found" in text else ""
