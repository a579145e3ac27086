"""Settings of the server: address, access, limits."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from dygmamba.core.errors import ConfigError
from dygmamba.core.files.untrusted import require_regular_file

MIN_TOKEN = 16  # characters; a shorter token can be guessed


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Address, access control and limits of a server."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None  # required unless the host is a loopback address
    tls_cert: Path | None = None
    tls_key: Path | None = None
    max_body_bytes: int = 16 * 2**20
    max_rows: int = 10_000  # at most `schemas.MAX_ROWS`: events, pairs, sources or nodes of one request
    max_ranked_pairs: int = 20_000_000  # sources times candidates of one request
    max_answer_rows: int = 100_000  # of a ranking or a classification
    max_values: int = 200_000  # in the JSON of one request, before it is parsed
    max_buffered_bytes: int = 2**28  # of the bodies of all requests in progress
    max_waiting: int = 256  # requests that wait for the model or the log; more are answered with 429
    batch_pairs: int = 1_024  # pairs that are scored in one call
    batch_window: float = 0.002  # seconds that a batch waits for requests that are being read
    timeout: float = 30.0  # seconds until a request is given up
    drain_seconds: float = 30.0  # for requests in progress, when the server is stopped

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise ConfigError(
                f"`port` must be between 0 and 65535; got {self.port}", code="port-out-of-range"
            )
        if self.token is not None and (len(self.token) < MIN_TOKEN or not _is_visible_ascii(self.token)):
            raise ConfigError(
                f"a token needs at least {MIN_TOKEN} visible ASCII characters; make one with: openssl rand -hex 32",
                code="weak-token",
            )
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"other machines can reach '{self.host}'; set a token with DYGMAMBA_TOKEN or `token`, or listen on "
                "127.0.0.1",
                code="token-required",
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS needs both a certificate and a key; give both", code="tls-half-given")
        for path in (self.tls_cert, self.tls_key):
            if path is not None:
                require_regular_file(path)

    @property
    def url(self) -> str:
        """Address of the server, for messages and browsers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert else 'http'}://{host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, or nothing: all addresses
        return False


def _is_visible_ascii(text: str) -> bool:
    return text.isascii() and all("!" <= character <= "~" for character in text)
