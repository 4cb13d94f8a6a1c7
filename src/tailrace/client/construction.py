"""Clients made of settings: the constructor takes the keywords, `of` a value, and an `async with` block closes."""

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, get_origin

from tailrace.client.hints.absent_names import unknown_settings
from tailrace.client.hints.call_hints import ClientType, spoken_name
from tailrace.client.setting_fields import keywords_of
from tailrace.client.settings import ClientSettings

P = ParamSpec("P")
S = TypeVar("S", bound=ClientSettings)
C = TypeVar("C")


class Configured(Generic[S], metaclass=ClientType):
    """A client that is made of the keywords of its settings, or of a settings value."""

    @classmethod
    def of(cls, settings: S, *parts: Any) -> Self:
        """The client with these settings. `parts`: further arguments of the client's constructor."""
        client = cls.__new__(cls)
        inspect.unwrap(cls.__init__)(client, settings, *parts)
        return client

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *dir(type(self))})


class AsyncClient(Configured[S], ABC):
    """An asyncio client, usable in an `async with` block."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Finish and close the connections."""


class StartableClient(AsyncClient[S]):
    """An asyncio client with the calls of aiokafka's clients, for programs without an `async with` block."""

    def start(self) -> "asyncio.Future[None]":
        """Begin; `await` takes no time, and may be left out. Needs a running event loop."""
        self._begin()
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        begun.set_result(None)
        return begun

    def _begin(self) -> None:
        """Begin the work that needs an event loop."""

    async def stop(self) -> None:
        """Do what `close` does."""
        await self.close()


def _two_addresses(given: tuple[object, ...], has_topics: bool) -> str:
    """The text about addresses beside a first argument, which in kafka-python is the name of a topic."""
    if has_topics:
        return f"the first argument is bootstrap_servers; say topics={[str(name) for name in given]} for topics"
    return "the first argument is bootstrap_servers; say it once"


def made_of(settings: Callable[P, S]) -> Callable[[Callable[[C, S], None]], Callable[Concatenate[C, P], None]]:
    """The decorator of a constructor. The constructor gets a settings value; its caller gives the keywords of the
    settings.

    A mapping in place of the first argument has settings by Kafka's dotted names; keywords count before it. For an
    unknown keyword the caller gets a TypeError that names the keyword, and the nearest setting.
    """
    plain = get_origin(settings) or settings  # without the kinds of key and value
    signature = inspect.signature(plain)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)

    def decorate(construct: Callable[[C, S], None]) -> Callable[Concatenate[C, P], None]:
        @wraps(construct)
        def made(client: C, /, *args: P.args, **keywords: P.kwargs) -> None:
            name = spoken_name(type(client))
            given: tuple[Any, ...] = args
            named: dict[str, Any] = keywords
            if args and isinstance(args[0], Mapping):
                given, named = args[1:], {**keywords_of(args[0]), **keywords}
            strangers = sorted(named.keys() - signature.parameters.keys())
            if strangers:
                raise TypeError(unknown_settings(name, strangers, plain))
            if given and "bootstrap_servers" in named:
                raise TypeError(f"{name}: {_two_addresses(given, 'topics' in signature.parameters)}")
            try:
                signature.bind(*given, **named)
            except TypeError as wrong:  # in the name of the class that the caller knows, not of its settings
                raise TypeError(f"{name}: {wrong}") from None
            construct(client, plain(*given, **named))

        vars(made)["__signature__"] = signature.replace(  # for help()
            parameters=[own, *signature.parameters.values()], return_annotation=None
        )
        return made

    return decorate
