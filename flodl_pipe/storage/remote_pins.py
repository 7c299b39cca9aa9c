"""What an object was when the list was made, and whether an answer comes from the same one.

A pin is the object's size and its ETag, or its time of last modification where the store has no ETags. It is taken from
a HEAD, and compared with the head of every answer that bytes are taken from.
"""

from typing import TYPE_CHECKING, NamedTuple

from flodl_pipe.errors import ChangedError
from flodl_pipe.storage.remote_address import RemoteAddress
from flodl_pipe.storage.remote_errors import StoreError
from flodl_pipe.units import format_count

if TYPE_CHECKING:
    from obstore import GetResult

__all__ = ["RemotePin", "require_same"]

_REMEDY = (
    "objects must stay as they are while a run reads them: restore the object, or start again so that the new one is "
    "read"
)


class RemotePin(NamedTuple):
    """Identity of an object's content at one moment.

    Attributes:
        size: Bytes.
        etag: As the store gives it, quotes included; None if it has none.
        modified: Time of last modification as ISO text; None if the store does not say.
    """

    size: int
    etag: str | None
    modified: str | None

    @classmethod
    def of(cls, address: RemoteAddress, result: "GetResult") -> "RemotePin":
        """Return the pin that the head of an answer states.

        Raises:
            SourceError: if the object's bytes are packed on the way, so that positions in it mean nothing.
        """
        packed = result.attributes.get("Content-Encoding", "")
        if packed not in ("", "identity"):
            raise StoreError(
                f"{address.shown}: the server sends it with Content-Encoding {packed!r}, so its bytes cannot be found "
                "by position; store and serve it unpacked"
            )
        meta = result.meta
        modified = meta["last_modified"]
        # The client answers the beginning of 1970 where the server gave no time.
        return cls(meta["size"], meta["e_tag"] or None, modified.isoformat() if modified.timestamp() > 0 else None)

    @property
    def strong_etag(self) -> bool:
        """Whether the ETag may be asked for in ``If-Match``, which no weak one ever matches."""
        return bool(self.etag) and not str(self.etag).startswith("W/")

    @property
    def size_only(self) -> bool:
        """Whether nothing but the size tells a change."""
        return self.etag is None and self.modified is None

    def __str__(self) -> str:
        identity = f"ETag {self.etag}" if self.etag else f"last modified {self.modified or '(not said)'}"
        return f"{format_count(self.size)} bytes, {identity}"


def require_same(address: RemoteAddress, pin: RemotePin, now: RemotePin, what: str = "") -> None:
    """Compare what an object is now with its pin: size, and ETag, or time of last modification without one.

    Raises:
        ChangedError: naming the object and both states.
    """
    if now.size == pin.size and (now.etag == pin.etag if pin.etag else now.modified == pin.modified):
        return
    place = f", {what}" if what else ""
    raise ChangedError(f"{address.shown}{place}: changed after it was opened: it was {pin}, now it is {now}; {_REMEDY}")
