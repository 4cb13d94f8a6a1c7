"""A law that does not hold."""


class Breach(AssertionError):
    """An invariant does not hold. Has the name of the invariant, and what was seen."""

    def __init__(self, law: str, detail: str) -> None:
        super().__init__(f"{law}: {detail}")
        self.law = law
