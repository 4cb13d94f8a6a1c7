"""UnregisterBroker (64): a broker that will not come back (KIP-631).

Kafka forgets a broker while it serves, and leaves it without a registration. Here it has to be stopped first; one that
does not answer is fenced within `broker.session.timeout.ms`.
"""

from tailrace.metadata.broker_commands import UnregisterBroker
from tailrace.metadata.commands import ControllerResponse
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.registrations import UnregisterBrokerRequest, UnregisterBrokerResponse
from tailrace.server.context import RequestContext
from tailrace.server.errors import error_response
from tailrace.server.ports import Controller


class UnregisterBrokerHandler:
    """Has the controller forget a broker that has stopped."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(self, request: UnregisterBrokerRequest, context: RequestContext) -> None:
        def answer(outcome: ControllerResponse | KafkaError) -> None:
            if isinstance(outcome, KafkaError):
                context.respond(error_response(request, context.api_version, outcome))
                return
            context.respond(UnregisterBrokerResponse())

        self._controller.submit(UnregisterBroker(broker_id=BrokerId(request.broker_id)), answer)
