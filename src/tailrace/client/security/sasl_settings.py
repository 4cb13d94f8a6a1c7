"""Settings of authentication by SASL, with Kafka's names and the names of librdkafka and kafka-python."""

from contextlib import suppress
from dataclasses import dataclass

from tailrace.client.security.tls_settings import TlsSettings
from tailrace.client.setting_fields import alias, invalid, secret
from tailrace.model.errors import KafkaError
from tailrace.model.security.security_protocol import SecurityProtocol
from tailrace.net.jaas import parse_jaas
from tailrace.net.sasl import SaslConfig
from tailrace.net.secrets import Secret


@dataclass(frozen=True, kw_only=True)
class SaslSettings(TlsSettings):
    """The settings of SASL that every client has."""

    sasl_mechanism: str | None = None
    """The mechanism of SASL: SCRAM-SHA-256, SCRAM-SHA-512, or PLAIN, which sends the password."""
    sasl_username: str | None = None
    """The user of the client."""
    sasl_password: str | None = secret()
    """The password of the user; or env:NAME or file:PATH, where the password stands."""
    sasl_jaas_config: str | None = secret()
    """The user and the password in Kafka's form, in place of these two; or env:NAME or file:PATH of the text."""
    sasl_mechanisms: str | None = alias("sasl_mechanism")
    sasl_plain_username: str | None = alias("sasl_username")
    sasl_plain_password: str | None = alias("sasl_password")

    def check_sasl(self) -> None:
        """Check the settings that belong together. Raises KafkaError INVALID_CONFIG, never with the password."""
        has_sasl = SecurityProtocol[self.security_protocol].has_sasl
        if not has_sasl:
            for name in ("sasl_mechanism", "sasl_username", "sasl_password", "sasl_jaas_config"):
                if getattr(self, name) is not None:
                    raise invalid(f"{name.replace('_', '.')}: this needs security.protocol SASL_SSL or SASL_PLAINTEXT")
            return
        if self.sasl_mechanism is None:
            raise invalid("sasl.mechanism: security.protocol has SASL; say SCRAM-SHA-512, or what the cluster has")
        object.__setattr__(self, "sasl_mechanism", self.sasl_mechanism.upper())
        is_named = self.sasl_username is not None or self.sasl_password is not None
        if is_named and self.sasl_jaas_config is not None:
            raise invalid("sasl.jaas.config and sasl.username: give either")
        if self.sasl_jaas_config is None and (not self.sasl_username or not self.sasl_password):
            raise invalid("sasl.username and sasl.password: SASL needs both")
        config = self.sasl()
        assert config is not None, "security.protocol has SASL"
        config.check()

    def sasl(self) -> SaslConfig | None:
        """The authentication of connections; None without SASL. Raises KafkaError INVALID_CONFIG."""
        if not SecurityProtocol[self.security_protocol].has_sasl:
            return None
        user, password = self.sasl_username or "", Secret(self.sasl_password or "")
        if self.sasl_jaas_config is not None:
            user, password = parse_jaas(Secret(self.sasl_jaas_config).reveal())
        return SaslConfig(mechanism=self.sasl_mechanism or "", username=user, password=password)

    @classmethod
    def is_elsewhere(cls, name: str, given: str) -> bool:
        """Whether the secret is a reference. A text of `sasl.jaas.config` may have its password as a reference."""
        if super().is_elsewhere(name, given):
            return True
        if name != "sasl_jaas_config":
            return False
        with suppress(KafkaError):
            return parse_jaas(given).password.is_reference
        return False
