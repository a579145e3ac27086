"""A file object between writers of whole files and `write_file`, which takes chunks."""

import io


class ChunkBuffer(io.RawIOBase):
    """A file object that collects what a writer writes, for `write_file` to fetch chunk by chunk."""

    def __init__(self) -> None:
        super().__init__()
        self._chunks: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, chunk: "bytes | memoryview") -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._chunks.append(bytes(chunk))
        self._position += len(self._chunks[-1])
        return len(self._chunks[-1])

    def take(self) -> list[bytes]:
        """Return the chunks written since the last call."""
        chunks, self._chunks = self._chunks, []
        return chunks
