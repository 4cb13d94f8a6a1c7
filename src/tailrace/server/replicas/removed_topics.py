"""The topics whose deletion this node's own metadata prove, from the node's start until the node examines its
directories.

That a topic is absent from the metadata is no proof: the metadata may have been founded anew, or restored without its
last records. The deletion is proven by
1. a committed record that removes the topic, by its id, which no other topic ever has. This node's metadata log has
   this record, from its disk or from the leader;
2. if a snapshot of the leader has replaced that log with its record: the topic was in the image that this node had, is
   not in the image of the snapshot, and the snapshot continues the node's image. A snapshot that continues the image
   has this broker's registration from the image, by the random id of the incarnation: metadata that were founded anew
   do not have that registration, and neither do older metadata that were restored.
"""

from collections.abc import Iterable
from typing import Final

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta
from tailrace.model.ids import BrokerId, TopicId

MOST_REMOVED: Final = 200_000
"""The most removed topics that are remembered; beyond this number the oldest are forgotten, and their directories stay,
as without a proof."""


class RemovedTopics:
    """A listener of images from the very first one on, until `stop`."""

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id = broker_id
        self._ids: dict[TopicId, None] | None = {}
        self._image = EMPTY_IMAGE
        self._continues = False

    def __contains__(self, topic_id: object) -> bool:
        return self._ids is not None and topic_id in self._ids

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Take note of a change, or of a part of a change."""
        if self._ids is None:
            return
        if image is not self._image:
            self._continues = self._is_continued(image)
            self._image = image
        self._add(delta.removed_ids)
        if self._continues:
            self._add(topic.topic_id for topic in delta.deleted_topics)

    def _is_continued(self, image: ClusterImage) -> bool:
        """Whether the image has this broker's registration from the image before."""
        before, after = self._image.brokers.get(self._broker_id), image.brokers.get(self._broker_id)
        return (
            before is not None
            and after is not None
            and (before.incarnation_id, before.broker_epoch) == (after.incarnation_id, after.broker_epoch)
        )

    def _add(self, topic_ids: Iterable[TopicId]) -> None:
        ids = self._ids
        assert ids is not None
        for topic_id in topic_ids:
            ids[topic_id] = None
            if len(ids) > MOST_REMOVED:
                del ids[next(iter(ids))]

    def stop(self) -> None:
        """Forget all topics: from now on each deletion is carried out when it comes."""
        self._ids = None
        self._image = EMPTY_IMAGE
