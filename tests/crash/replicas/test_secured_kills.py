"""kill -9 of nodes with TLS, SCRAM and ACLs, under load: nodes and clients authenticate anew after each death."""

import random
from pathlib import Path

import pytest

from crash.access import SecuredNodes
from crash.judge import Judge
from crash.quorum.workload import kill_one, put_to_the_test
from crash.replicas.leader_kills import kill_leaders

DEATHS = 3


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_no_acknowledged_change_of_metadata_is_lost_with_tls_and_scram(
    tmp_path: Path, chance: random.Random, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = SecuredNodes(tmp_path)
    verdict = put_to_the_test(
        tmp_path,
        chance,
        lambda deaths: deaths < DEATHS,
        kill_one,
        config=nodes.config,
        prepare=lambda cluster: nodes.add_user(cluster, monkeypatch),
    )
    judge(*verdict)


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_no_acknowledged_record_is_lost_with_tls_and_scram(
    tmp_path: Path, chance: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = SecuredNodes(tmp_path)
    kill_leaders(tmp_path, chance, config=nodes.config, prepare=lambda cluster: nodes.add_user(cluster, monkeypatch))
