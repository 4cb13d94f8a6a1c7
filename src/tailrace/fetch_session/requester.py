"""The end of a fetch session at its requester: a consumer or a follower (KIP-227). The other end is at one broker.
Pure.

1. A single fetch is under way at a time: `request`, then `answered` or `failed`, then the next fetch.
2. A full fetch (epoch 0) names all wanted partitions in their order. An incremental fetch names the partitions whose
   value the session does not have, and the partitions that leave the session. A partition whose value is unchanged is
   not sent, even when its place changes: the broker keeps an order of its own.
3. An answer counts only if it fits its request: the answer to a full fetch has exactly the partitions of the request,
   the answer to an incremental fetch has only partitions of the session.
4. After FETCH_SESSION_ID_NOT_FOUND (70), or a full answer that does not fit, the next fetch is full and names no
   session. After any other fault the next fetch is full too, and names the session, which the broker then closes: both
   ends begin anew, whatever either end has seen of the fetch that failed.
5. Session id 0 in an answer: the broker has no session (any more). The data count, and the next fetch is full.
6. With `max_partitions` a fetch names at most `max_partitions` partitions, and the next fetches add the rest to the
   session. So neither end spends a long turn on a large session. When the broker has refused a session, or has closed a
   session while partitions were being added, no session can take the rest: then every full fetch is whole.

The cost of a step grows with its changes, with the partitions of its answer and, in a full fetch, with all partitions.
"""

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from tailrace.fetch_session.epochs import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, is_full, next_epoch
from tailrace.model.errors import ErrorCode

K = TypeVar("K", bound=Hashable)
P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest(Generic[K, P]):
    """The part of a fetch that its session decides."""

    session_id: int
    session_epoch: int
    partitions: tuple[tuple[K, P], ...]
    """The partitions of the fetch, in order: in a full fetch the wanted partitions (see `is_slice`), in any other fetch
    the new and the changed partitions."""
    forgotten: tuple[K, ...]
    """The partitions that leave the session, none of which is in `partitions`."""
    is_slice: bool
    """Whether the next fetches name more partitions, see `max_partitions`. If so, the broker must answer this fetch at
    once."""

    @property
    def is_full(self) -> bool:
        """Whether the fetch names all partitions, and so begins or ends a session."""
        return is_full(self.session_epoch)


class FetchSessionRequester(Generic[K, P]):
    """A requester's session with a broker.

    `K` is a partition's name on the wire. A topic that was deleted and created again has another id: its partitions
    are other keys, and the caller forgets the keys of the old id. A caller that changes between names and ids calls
    `failed` first: a session has either names or ids.

    `P` is the part of a fetch that belongs to one partition, compared by `==`. `P` has the position of the partition.
    It has no value whose changes the broker does not need.
    """

    def __init__(self, *, max_partitions: int | None = None) -> None:
        """`max_partitions` limits the partitions that one fetch names, forgotten partitions included; None: no
        limit."""
        assert max_partitions is None or max_partitions > 0
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        """The epoch of the next fetch, once the last fetch is answered."""
        self._max_partitions = max_partitions
        self._is_refused = False  # the broker's last full answer gave no session
        self._is_under_way = False
        self._is_abandoned = False  # the session was closed while a fetch of it is under way
        self._wanted: dict[K, P] = {}  # in the order of a full fetch
        # These three dictionaries differ only between two fetches, and while `max_partitions` holds partitions back.
        self._held: dict[K, P] = {}  # by the session, as all fetches so far have stated
        self._unsent: dict[K, None] = {}  # wanted, and not held with this value
        self._leaving: dict[K, None] = {}  # held; the next fetch that names them forgets them

    def __len__(self) -> int:
        """The number of wanted partitions."""
        return len(self._wanted)

    def request(self, changed: Iterable[tuple[K, P]], forgotten: Iterable[K]) -> SessionRequest[K, P]:
        """The next fetch, after these changes: first `forgotten` leave the wanted partitions, then `changed` are put at
        their end.

        A partition in both leaves the session with this fetch, and enters it again with the next: the broker then
        sends the whole partition, whatever answers came before. `forgotten` may name partitions that were not wanted.
        """
        self._forget(forgotten)
        self._change(changed)
        return self._full() if is_full(self.epoch) else self._incremental()

    def _forget(self, forgotten: Iterable[K]) -> None:
        for key in forgotten:
            self._wanted.pop(key, None)
            self._unsent.pop(key, None)
            if key in self._held:
                self._leaving[key] = None

    def _change(self, changed: Iterable[tuple[K, P]]) -> None:
        wanted, held, unsent = self._wanted, self._held, self._unsent
        for key, value in changed:
            wanted.pop(key, None)
            wanted[key] = value
            unsent.pop(key, None)
            if key not in held or key in self._leaving or held[key] != value:
                unsent[key] = None

    def _full(self) -> SessionRequest[K, P]:
        self._leaving.clear()
        if self._max_partitions is None or self._is_refused or len(self._wanted) <= self._max_partitions:
            self._held = dict(self._wanted)
            self._unsent = {}
        else:
            self._held = dict(islice(self._wanted.items(), self._max_partitions))
            self._unsent = dict.fromkeys(self._wanted)  # made of a dictionary, which spares the hash of each key
            for key in self._held:
                del self._unsent[key]
        return self._request(tuple(self._held.items()), ())

    def _incremental(self) -> SessionRequest[K, P]:
        wanted, held, unsent, leaving = self._wanted, self._held, self._unsent, self._leaving
        room = len(leaving) + len(unsent) if self._max_partitions is None else self._max_partitions
        forgotten = tuple(islice(leaving, room))
        named = tuple(islice((key for key in unsent if key not in leaving), room - len(forgotten)))
        for key in forgotten:
            del leaving[key], held[key]
        for key in named:
            del unsent[key]
            held[key] = wanted[key]
        for emptied in (leaving, unsent):
            if not emptied:
                emptied.clear()  # a dict keeps the room of removed entries, and would be walked through
        return self._request(tuple((key, held[key]) for key in named), forgotten)

    def _request(self, partitions: tuple[tuple[K, P], ...], forgotten: tuple[K, ...]) -> SessionRequest[K, P]:
        self._is_under_way, self._is_abandoned = True, False
        return SessionRequest(
            session_id=self.session_id,
            session_epoch=self.epoch,
            partitions=partitions,
            forgotten=forgotten,
            is_slice=bool(self._unsent or self._leaving),
        )

    def answered(self, *, error_code: int, session_id: int, keys: Collection[K], is_throttled: bool = False) -> bool:
        """Take the answer to the last request: the answer's top-level error, session id and partitions.

        Returns whether the data of the partitions count; if not, no data may be used. `is_throttled`: the answer has a
        throttle time above 0. Then a full answer without partitions does not count, and the full fetch is repeated.
        """
        self._is_under_way = False
        if self._is_abandoned:
            return False
        if error_code != ErrorCode.NONE:
            self._begin_anew(NO_SESSION if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND else self.session_id)
            return False
        if is_full(self.epoch):
            return self._full_answered(session_id, keys, is_throttled=is_throttled)
        held = self._held
        if not all(key in held for key in keys):
            self._begin_anew(self.session_id)
            return False
        if session_id == NO_SESSION:
            most = self._max_partitions  # a session that has grown too large would never have the rest in slices
            self._is_refused = most is not None and len(self._held) > most
            self._begin_anew(NO_SESSION)
        else:
            self.epoch = next_epoch(self.epoch)
        return True

    def _full_answered(self, session_id: int, keys: Collection[K], *, is_throttled: bool) -> bool:
        is_complete = set(keys) == self._held.keys()
        if not is_complete or (is_throttled and not keys):
            self._begin_anew(NO_SESSION)
            return False
        self._is_refused = session_id == NO_SESSION
        self._begin_anew(session_id)
        if not self._is_refused:
            self.epoch = next_epoch(INITIAL_EPOCH)
        return True

    def failed(self) -> None:
        """Begin anew, and let the broker close the session: the last request got no answer that could be read."""
        self._is_under_way = False
        self._begin_anew(self.session_id)

    def close(self) -> SessionRequest[K, P] | None:
        """The fetch that closes the session at the broker; None without a session. No answer is needed.

        The caller sends the returned fetch behind a fetch that is under way. The answer to the fetch under way does not
        count. If that fetch is full, its answer may open another session, and the caller closes that session too. The
        wanted partitions stay wanted.
        """
        session_id = self.session_id
        self._is_abandoned = self._is_under_way and not is_full(self.epoch)
        self._begin_anew(NO_SESSION)
        if session_id == NO_SESSION:
            return None
        return SessionRequest(
            session_id=session_id, session_epoch=FINAL_EPOCH, partitions=(), forgotten=(), is_slice=False
        )

    def _begin_anew(self, session_id: int) -> None:
        """Let the next fetch be full, and name this session."""
        self.session_id, self.epoch = session_id, INITIAL_EPOCH
