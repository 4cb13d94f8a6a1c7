"""Deletion of topics (pure)."""

from collections import Counter
from dataclasses import replace

from tailrace.metadata.commands import DeleteTopics, TopicDeletion, TopicReference, TopicsDeleted
from tailrace.metadata.image import ClusterImage, TopicImage
from tailrace.metadata.records import MetadataRecord, RemoveTopicRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import format_topic_id
from tailrace.model.machines import Decision


class TopicDeletions:
    """One DeleteTopics command on its way to a decision."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def decide(self, command: DeleteTopics) -> Decision[MetadataRecord, TopicsDeleted]:
        """A record per topic that goes, and a result for every reference, in order."""
        found = [self._deletion(reference) for reference in command.topics]
        times_named = Counter(deletion.topic_id for deletion in found if deletion.error is None)
        results = tuple(
            replace(deletion, error=KafkaError(ErrorCode.INVALID_REQUEST, "the topic is named twice"))
            if deletion.error is None and times_named[deletion.topic_id] > 1
            else deletion
            for deletion in found
        )
        records = tuple(
            RemoveTopicRecord(topic_id=deletion.topic_id)
            for deletion in results
            if deletion.error is None and deletion.topic_id is not None
        )
        return Decision(records=records, response=TopicsDeleted(results=results))

    def _deletion(self, reference: TopicReference) -> TopicDeletion:
        """The fault of one reference alone, or None."""
        try:
            topic = self._referenced(reference)
        except KafkaError as refusal:
            return TopicDeletion(name=reference.name, topic_id=reference.topic_id, error=refusal)
        return TopicDeletion(name=topic.name, topic_id=topic.topic_id)

    def _referenced(self, reference: TopicReference) -> TopicImage:
        if (reference.name is None) == (reference.topic_id is None):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "a topic is named by its name or by its id, not both or neither"
            )
        if reference.name is not None:
            topic = self._image.topics.get(reference.name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {reference.name!r}")
        else:
            assert reference.topic_id is not None
            topic = self._image.topic_by_id(reference.topic_id)
            if topic is None:
                shown = format_topic_id(reference.topic_id)
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {shown}")
        return topic
