"""Produces with acks=all until its stdin is closed.

    python -m crash.replicas.producer SERVERS TOPIC PARTITIONS HISTORY [PAUSE [WAIT]]

A process of its own: a client made of C takes everything with it when it falls. One JSON line per delivery goes to
HISTORY: [seconds, partition, offset, value] for what was acknowledged, by the clock that never jumps, and in the end
["end", sent, not delivered]. The offset is -1 where librdkafka does not know it. PAUSE: so many seconds between a
record for each partition and the next records. WAIT: so many for an answer, 60 if it does not say; with DELIVERY_S an
answer that does not come fails its records.
"""

import json
import sys
import threading
import time
from pathlib import Path

import confluent_kafka

from crash.access import client_settings
from crash.librdkafka_offsets import offset_of

DELIVERY_S = 90


def main(servers: str, topic: str, partitions: int, history: Path, pause_s: float, answer_s: int) -> None:
    producer = confluent_kafka.Producer(
        {
            **client_settings(servers),
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "message.timeout.ms": DELIVERY_S * 1_000,
            "socket.timeout.ms": answer_s * 1_000,
        }
    )
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    with history.open("w", encoding="utf-8") as out:

        def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is None:
                value = (message.value() or b"").decode()
                out.write(json.dumps([time.monotonic(), message.partition(), offset_of(message), value]) + "\n")

        sent = 0
        while not ended.is_set():
            for partition in range(partitions):
                while True:
                    try:
                        producer.produce(topic, value=f"{sent}".encode(), partition=partition, on_delivery=delivered)
                        break
                    except BufferError:  # there was no leader for so long that its queue is full
                        producer.poll(0.1)
            sent += 1
            producer.poll(pause_s)
        left = producer.flush(DELIVERY_S)
        out.write(json.dumps(["end", sent * partitions, left]) + "\n")


if __name__ == "__main__":
    main(
        sys.argv[1],
        sys.argv[2],
        int(sys.argv[3]),
        Path(sys.argv[4]),
        float(sys.argv[5]) if len(sys.argv) > 5 else 0.001,
        int(sys.argv[6]) if len(sys.argv) > 6 else 60,
    )
