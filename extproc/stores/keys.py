"""Every Redis key is built here and nowhere else.

``root`` is the subject whose keys are used together; the braces make it the hash tag, so that all
keys of one call live in one slot of a Redis Cluster. Ids are validated at the edge (``core.ids``),
where braces are excluded. Functions named ``*_prefix`` end where a script appends the rest: a UTC
minute ``yyyyMMddHHmm``, which only Redis' clock may tell, or a reservation id.
"""

from extproc.core.ids import key_word

# Plain set of every root that may hold a reservation.
ROOTS = "roots"
# Sorted set of the roots of counters that all tenants share, by when they were last asked (ms).
ROOTS_ACROSS = "roots:across"
# Hash: what a provider's input tokens are to ours, by provider and model; see factor_store.
INPUT_FACTORS = "factors:input"


def config(root: str) -> str:
    """Hash: limits as in SQL (status, rpm, tpm), or the lease of who is fetching them."""
    return f"config:{{{root}}}"


def rpm_prefix(root: str) -> str:
    """Strings: requests taken in a minute."""
    return f"rate:rpm:{{{root}}}:"


def tpm_prefix(root: str) -> str:
    """Strings: tokens taken in a minute."""
    return f"rate:tpm:{{{root}}}:"


def output_prefix(root: str) -> str:
    """Hashes: count and output_tokens of the answers that ended in a minute."""
    return f"usage:output:{{{root}}}:"


def output_model_prefix(root: str, model: str) -> str:
    """Hashes: the same of the answers of one model; for roots with policies only.

    ``model`` is a client's text: what is no id stands there as a digest.
    """
    return f"{output_prefix(root)}model:{key_word(model)}:"


def reservation_prefix(root: str) -> str:
    """Hashes: one record a reservation."""
    return f"resv:{{{root}}}:"


def reservation(root: str, reservation_id: str) -> str:
    """Hash: the record of one reservation."""
    return reservation_prefix(root) + reservation_id


def pending(root: str) -> str:
    """Sorted set: ids of open reservations, scored by their deadline (ms since the epoch)."""
    return f"pending:{{{root}}}"


def idempotency(root: str, digest: str) -> str:
    """Hash: the last attempt with one of a client's idempotency keys, and what it asked."""
    return f"idem:{{{root}}}:{digest}"


def refusals(root: str) -> str:
    """List: the last refusals, the newest first, one JSON each (lua/include/refusals.lua)."""
    return f"refusals:{{{root}}}"


def review(root: str) -> str:
    """Sorted set: ids of reservations that wait for people's word, by when they came (ms)."""
    return f"review:{{{root}}}"


def events(root: str) -> str:
    """Stream: usage events that the ledger does not have yet (lua/include/event.lua)."""
    return f"events:{{{root}}}"


# Counters of policies. ``key`` names the policy, its dimension and the value that it counts, in the
# characters of an id (``core.ids``), for example ``p1.total_tpm.user:alice``: no braces.


def minute_prefix(root: str, key: str) -> str:
    """Strings: what a policy's counter took in a minute."""
    return f"rate:{{{root}}}:{key}:"


def window(root: str, key: str) -> str:
    """Sorted set: a sliding window, reservations by when they were admitted (ms)."""
    return f"window:{{{root}}}:{key}"


def amounts(window_key: str) -> str:
    """Hash: what each entry of that sliding window has taken, and their sum. Not of requests."""
    return "amounts:" + window_key.removeprefix("window:")


def bucket(root: str, key: str) -> str:
    """Hash: a token bucket, its level (micro units) and when it was true (ms)."""
    return f"bucket:{{{root}}}:{key}"


def slots(root: str, key: str) -> str:
    """Sorted set: who holds a lease of a concurrency limit, by the lease's end (ms)."""
    return f"slots:{{{root}}}:{key}"


def quota_prefix(root: str, key: str) -> str:
    """Hashes: used and held in a period: a day, a month, a contract cycle."""
    return f"quota:{{{root}}}:{key}:"
