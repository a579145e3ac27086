"""A topic of Kafka as a source, against the mock cluster that the client itself brings."""

import json
import threading
import time
import urllib.request
from collections import Counter

import pytest

import dygmamba as dm
from dygmamba.api.client import Client
from dygmamba.live.event_sources import follow_source
from dygmamba.live.kafka_source import KafkaTopic
from live_server import running
from raising import raises

confluent_kafka = pytest.importorskip("confluent_kafka", reason="the extra kafka is not installed")


def make_cluster():
    """A producer whose own mock cluster makes topics of four partitions, and the address of a broker."""
    producer = confluent_kafka.Producer({"bootstrap.servers": "mock:9092", "test.mock.num.brokers": 1})
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    return producer, f"{broker.host}:{broker.port}"


def send(producer, days: range) -> None:
    for day in days:
        event = {"src": "alice", "dst": "bob", "time": f"2024-03-{day:02d}"}
        producer.produce("mail", json.dumps(event).encode(), partition=day % 4)
    producer.flush(10)


def test_messages_are_taken_once_also_after_a_crash_before_the_acknowledgement(mail, tmp_path):
    """For all interruptions between reading and committing: every message is in the log exactly once."""
    producer, address = make_cluster()
    unreadable = []
    producer.produce("mail", b"no json", partition=0)
    send(producer, range(1, 6))

    def take(count: int, crash: bool = False) -> None:
        stop = threading.Event()
        with dm.live(mail, tmp_path / "state", late="40d") as live:

            class Crashing:
                offsets = live.offsets

                def append(self, events, **how):
                    stop.set()
                    raise KeyboardInterrupt

            def note(batch, answer):
                unreadable.append(batch.unreadable)
                if live.sequence >= count:
                    stop.set()

            topic = KafkaTopic(address, "mail")
            if crash:
                with pytest.raises(KeyboardInterrupt):
                    follow_source(Crashing(), topic, stop, note)
            else:
                follow_source(live, topic, stop, note)
            assert live.sequence == (0 if crash else count)

    take(0, crash=True)
    take(5)
    send(producer, range(6, 9))
    take(8)
    with dm.live(mail, tmp_path / "state") as live:
        assert live.data.store.time[-8:].diff().ge(0).all()
        assert sum(live.offsets["kafka:mail"].values()) == 9
    assert sum(unreadable) == 1


def test_unreadable_messages_and_a_broker_that_is_gone_are_reported(mail, tmp_path, monkeypatch, caplog):
    """Messages that are no events are counted like lines of a file; a broker that stops answering is an alert."""
    monkeypatch.setattr("dygmamba.live.kafka_source.CONNECT_SECONDS", 1.0)
    producer, address = make_cluster()
    for value in (b"no json", b"[1]", b'{"odd": 1}'):
        producer.produce("mail", value, partition=0)
    send(producer, range(1, 2))
    topic = KafkaTopic(address, "mail", {"log_level": 0})
    with (
        running(lambda: dm.live(mail, tmp_path / "state"), [topic]) as url,
        Client(url) as client,
    ):

        def wait(is_reached) -> None:
            end = time.monotonic() + 30
            while not is_reached():
                assert time.monotonic() < end
                time.sleep(0.05)

        def alerts() -> list[str]:
            return [alert["code"] for alert in client.status()["alerts"]]

        wait(lambda: client.status()["facts"]["sequence"] == 1)
        time.sleep(1.5)  # longer than the broker may be silent
        assert alerts() == []
        del producer  # and its cluster
        wait(lambda: alerts() == ["source-failed"])
        metrics = urllib.request.urlopen(f"{url}/metrics").read().decode()
        assert 'dygmamba_events_total{verdict="unreadable"} 2.0' in metrics
    lost = [record.fields for record in caplog.records if "not taken" in record.message]
    assert sum((Counter(fields) for fields in lost), Counter()) == {"invalid": 1, "unreadable": 2}


def test_a_broker_that_does_not_answer_is_one_sentence(monkeypatch):
    monkeypatch.setattr("dygmamba.live.kafka_source.CONNECT_SECONDS", 0.2)
    with raises("kafka-unreachable"):
        next(KafkaTopic("127.0.0.1:9", "mail", {"log_level": 0}).read(None, threading.Event()))
