"""Settings of the access of clients."""

import pytest

from tailrace.model.errors import KafkaError
from tailrace.node.settings.access import super_users
from tailrace.node.settings.config import NodeConfig

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def config(**settings: str) -> NodeConfig:
    return NodeConfig({"log.dirs": "/data"} | {name.replace("_", "."): text for name, text in settings.items()})


@pytest.mark.parametrize("name", [STANDARD, "StandardAuthorizer"])
def test_the_standard_authorizer_has_two_names(name: str) -> None:
    found = config(authorizer_class_name=name, super_users="User:a; User:CN=b,O=c;")
    assert (found.authorizer_class, found.super_users) == (name, ("User:a", "User:CN=b,O=c"))


@pytest.mark.parametrize("name", ["kafka.security.authorizer.AclAuthorizer", "standardauthorizer", "os:system"])
def test_another_authorizer_refuses_the_start(name: str) -> None:
    with pytest.raises(KafkaError, match="there is no authorizer .* StandardAuthorizer decides"):
        config(authorizer_class_name=name)


@pytest.mark.parametrize("setting", [{"super_users": "User:a"}, {"allow_everyone_if_no_acl_found": "true"}])
def test_a_setting_of_an_authorizer_without_an_authorizer_refuses_the_start(setting: dict[str, str]) -> None:
    with pytest.raises(KafkaError, match="without an authorizer every client may do everything"):
        config(**setting)


def test_a_node_without_the_setting_has_no_authorizer() -> None:
    assert config().authorizer_class is None
    assert config(authorizer_class_name="", allow_everyone_if_no_acl_found="false").authorizer_class is None


@pytest.mark.parametrize("text", ["admin", "User:a;b"])
def test_a_super_user_has_a_type(text: str) -> None:
    with pytest.raises(KafkaError, match="has no type"):
        super_users(text)
