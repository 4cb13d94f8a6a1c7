"""Since when something has been the case with one connection, looked at about once a second."""


class Patience:
    """Of one connection: how long it has been idle, in the middle of a frame, or not taking its answers."""

    __slots__ = ("_since_ms", "written_bytes")

    def __init__(self) -> None:
        self._since_ms: dict[str, tuple[object, int]] = {}
        self.written_bytes = 0
        """Handed to the transport since the connection was made."""

    def age(self, what: object, is_so: bool, now_ms: int) -> int:
        """For how long it has been so, in ms. A pair is (name, detail): another detail starts anew."""
        name = what[0] if isinstance(what, tuple) else str(what)
        if not is_so:
            self._since_ms.pop(name, None)
            return 0
        known, since_ms = self._since_ms.get(name, (None, now_ms))
        if known != what:
            since_ms = now_ms
            self._since_ms[name] = (what, now_ms)
        return now_ms - since_ms
