"""Nodes with another interval are nodes of the product otherwise."""

import subprocess
import sys
from pathlib import Path

from benchmarks.peers.coalesced import coalesced
from tailrace.node.local.cluster import LocalNode
from tailrace.testing import node_process

NODE = LocalNode(node_id=1, home=Path("/nowhere"), settings={})


def test_a_node_in_the_block_has_the_interval_and_all_options_and_one_after_it_is_the_product() -> None:
    product = node_process.serve_command(NODE)
    with coalesced(7):
        inside = node_process.serve_command(NODE)
    assert inside == [sys.executable, "-m", "benchmarks.peers.coalesced", "7", *product[3:]]
    assert node_process.serve_command(NODE) == product


def test_the_command_line_behind_the_interval_is_the_products() -> None:
    command = [sys.executable, "-m", "benchmarks.peers.coalesced", "7", "serve", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "--until-stdin-closes" in done.stdout
