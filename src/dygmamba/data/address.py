"""Where a file is asked for: an address that can be shown and stored, and apart from it who asks."""

import base64
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from urllib.request import Request

from dygmamba.errors import ConfigError


def public(url: str) -> str:
    """The address without the name and the password in it, for all that is printed or written."""
    return re.sub(r"^(\w[\w+.-]*:)?(//)?[^/?#]*@", r"\1\2", url)


@dataclass(frozen=True, slots=True)
class Address:
    """`http://name:password@host/file` asks for `http://host/file`; the password goes to that host and nowhere else."""

    url: str
    authorization: str | None = field(default=None, repr=False)

    @staticmethod
    def of(url: str) -> "Address":
        """The address of a file that is fetched over HTTP."""
        if urlsplit(public(url)).scheme not in ("http", "https"):
            raise ConfigError(
                f"cannot download {public(url)!r}: the address must start with http:// or https://"
            )
        who, at, _ = urlsplit(url).netloc.rpartition("@")
        if not at:
            return Address(url)
        name, _, password = who.partition(":")
        pair = f"{unquote(name)}:{unquote(password)}".encode()
        return Address(public(url), f"Basic {base64.b64encode(pair).decode()}")

    def request(self, headers: dict[str, str]) -> Request:
        """A request; to another host that the first one names, the password is not sent along."""
        request = Request(self.url, headers=headers)
        if self.authorization is not None:
            request.add_unredirected_header("Authorization", self.authorization)
        return request
