"""Secrets: texts that do not show, and references that are followed late."""

import copy
import pickle
from pathlib import Path

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net.secrets import Secret


def test_a_text_is_revealed_and_never_shown_or_pickled() -> None:
    secret = Secret("canary")
    assert secret.reveal() == "canary"
    assert "canary" not in f"{secret} {secret!r} {[secret]}"
    assert copy.copy(secret) == copy.deepcopy(secret) == secret
    with pytest.raises(TypeError, match="env:NAME or file:PATH") as refused:
        pickle.dumps(secret)
    assert "canary" not in str(refused.value)


def test_a_reference_is_pickled_and_followed_where_the_text_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("from a file\n")
    monkeypatch.setenv("A_PASSWORD", "from the environment")
    for reference, text in (
        ("env:A_PASSWORD", "from the environment"),
        (f"file:{tmp_path / 'password'}", "from a file"),
    ):
        secret: Secret = pickle.loads(pickle.dumps(Secret(reference)))
        assert (secret.reveal(), repr(secret)) == (text, f"Secret({reference})")


@pytest.mark.parametrize("reference", ["env:NO_SUCH_VARIABLE", "file:/nowhere/password"])
def test_a_reference_to_nothing_is_refused_with_its_name(reference: str) -> None:
    with pytest.raises(KafkaError, match=reference.partition(":")[2]) as refused:
        Secret(reference).reveal()
    assert refused.value.code is ErrorCode.INVALID_CONFIG
