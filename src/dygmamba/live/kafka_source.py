"""A topic of Kafka as a source of events. Needs the extra `kafka`."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

from dygmamba.core.errors import DownloadError, first_line, make_package_error
from dygmamba.live.event_sources import BATCH_EVENTS, POLL_SECONDS, Event, SourceBatch

CONNECT_SECONDS = 10.0


class KafkaTopic:
    """JSON objects in a topic. Offsets are kept in the log with the events, not in Kafka.

    A message without an `id` gets one from its topic, partition and offset. A message that is not an object is left
    out and counted.

    Args:
        brokers: Addresses, such as "localhost:9092".
        topic: Name of the topic; all its partitions are read.
        settings: More settings of the client (librdkafka), such as those of TLS and SASL.
    """

    def __init__(self, brokers: str, topic: str, settings: dict[str, Any] | None = None) -> None:
        self.brokers, self.topic, self.settings = brokers, topic, settings or {}

    @property
    def name(self) -> str:
        return f"kafka:{self.topic}"

    def read(self, offset: Any, stop: threading.Event) -> Iterator[SourceBatch]:
        """Yield messages after an offset: a dict from partition to the next message.

        Raises:
            ConfigError: The client is not installed.
            DownloadError: The brokers do not answer, or have no such topic.
        """
        client = _import_client()
        offsets = {int(partition): int(place) for partition, place in (offset or {}).items()}
        consumer = client.Consumer(
            {
                "bootstrap.servers": self.brokers,
                "group.id": "dygmamba",  # the client wants one; nothing is committed to it
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **self.settings,
            }
        )
        try:
            consumer.assign(
                [
                    client.TopicPartition(self.topic, number, offsets.get(number, client.OFFSET_BEGINNING))
                    for number in self._list_partitions(client, consumer)
                ]
            )
            yield SourceBatch([], _spell_offsets(offsets))  # the brokers answer
            heard = time.monotonic()
            while not stop.is_set():
                messages = [
                    one for one in consumer.consume(BATCH_EVENTS, POLL_SECONDS) if one.error() is None
                ]
                if messages:
                    heard = time.monotonic()
                    offsets |= {message.partition(): message.offset() + 1 for message in messages}
                    events = [event for message in messages if (event := self._parse(message)) is not None]
                    yield SourceBatch(events, _spell_offsets(offsets), len(messages) - len(events))
                elif time.monotonic() - heard > CONNECT_SECONDS:
                    # no message, or no broker: the client does not say, so the broker is asked for something
                    self._list_partitions(client, consumer)
                    heard = time.monotonic()
        finally:
            consumer.close()

    def _list_partitions(self, client: Any, consumer: Any) -> list[int]:
        try:
            topic = consumer.list_topics(self.topic, CONNECT_SECONDS).topics[self.topic]
        except client.KafkaException as error:
            raise DownloadError(
                f"Kafka at {self.brokers} does not answer ({first_line(error)}); check the address",
                code="kafka-unreachable",
            ) from error
        if topic.error is not None or not topic.partitions:
            raise DownloadError(
                f"Kafka at {self.brokers} has no topic '{self.topic}'; create it first", code="unknown-topic"
            )
        return sorted(topic.partitions)

    def _parse(self, message: Any) -> Event | None:
        try:
            event = json.loads(message.value())
            if isinstance(event, dict):
                return {"id": f"{self.topic}/{message.partition()}/{message.offset()}", **event}
        except (ValueError, TypeError, RecursionError):
            pass
        return None


def _spell_offsets(offsets: dict[int, int]) -> dict[str, int]:
    return {str(number): place for number, place in offsets.items()}


def _import_client() -> Any:
    try:
        import confluent_kafka  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise make_package_error("Kafka", "confluent-kafka", "'dyg-mamba[kafka]'") from error
    return confluent_kafka
