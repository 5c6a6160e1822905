"""What this process has metered lately, for answers that carry no mark of it back to Envoy."""

from collections import OrderedDict

# An entry of the access log comes within about a second of the answer's end.
MOST_KEPT = 65_536


class Metered:
    """The newest reservations that metering has settled here, bounded; each is asked for once.

    Without it the ending would settle once more, which the store would ignore, at the cost of a
    second call. Forgetting one costs just that call.
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, reservation_id: str) -> None:
        self._ids[reservation_id] = None
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)

    def take(self, reservation_id: str) -> bool:
        """True when it was added and not taken yet."""
        if reservation_id in self._ids:
            del self._ids[reservation_id]
            return True
        return False
