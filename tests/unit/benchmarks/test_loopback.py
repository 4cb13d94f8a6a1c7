"""Reports of iperf3 are read as MB/s and CPU time of the receiver."""

import json

import pytest

from benchmarks.peers.loopback import Failed, Throughput, parse_report


def test_bits_become_megabytes_and_the_receivers_share_of_a_core_becomes_time() -> None:
    end = {"sum_received": {"bits_per_second": 16e9}, "cpu_utilization_percent": {"remote_total": 50.0}}
    assert parse_report(json.dumps({"end": end})) == Throughput(2000.0, 250.0)


def test_an_error_is_not_a_measurement() -> None:
    with pytest.raises(Failed, match="refused"):
        parse_report(json.dumps({"start": {}, "end": {}, "error": "unable to connect: Connection refused"}))
