"""The pairs of profile and Envoy release that are supported, and what each profile promises."""

import functools
from dataclasses import dataclass
from typing import Any

from extproc.envoyconfig.options import Profile
from tests.support.client import StackClient, eventually
from tests.support.envoys import VERSIONS
from tests.support.sdk_calls import COUNTED, GUESSED, KNOWN


@dataclass(frozen=True, slots=True)
class Promise:
    """What a profile knows of answers, beside the usage that providers report at their ends.

    ``unasked``: how well the tokens are known of an OpenAI stream whose client asked for no usage;
    ``unreported``: of an answer without usage, whole or broken; each KNOWN (the provider's words),
    COUNTED (its text, by us) or GUESSED (its size, and never below the reserve).
    ``reads_errors``: errors inside a 200, and what refusals say, are recognised.
    """

    unasked: str
    unreported: str
    reads_errors: bool


_NATIVE = Promise(unasked=GUESSED, unreported=GUESSED, reads_errors=False)
PROMISES: dict[Profile, Promise] = {
    "inline": Promise(unasked=KNOWN, unreported=COUNTED, reads_errors=True),
    "observe": Promise(unasked=COUNTED, unreported=COUNTED, reads_errors=True),
    "native": _NATIVE,
    "native-1.38": _NATIVE,
}


@dataclass(frozen=True, slots=True)
class Target:
    """A profile on a release of Envoy; without ``version`` the newest."""

    profile: Profile
    version: str | None = None

    @property
    def promise(self) -> Promise:
        return PROMISES[self.profile]

    @property
    def passes_errors_through_metering(self) -> bool:
        """Envoy's own 504 waits for metering: inline, but for Envoy 1.36."""
        return self.profile == "inline" and self.version != "1.36.4"

    def __str__(self) -> str:
        return f"{self.profile}-on-{self.version or 'newest'}"


_RELEASES = (*VERSIONS, None)
TARGETS = (
    *(Target("inline", version) for version in _RELEASES),
    *(Target("observe", version) for version in _RELEASES),
    *(Target("native-1.38", version) for version in ("1.38.3", "1.39.3", None)),
    Target("native"),
)


def settled(
    client: StackClient, count: int = 1, *, knowledge: str = KNOWN, outcome: str | None = None
) -> list[dict[str, str]]:
    """Wait until ``count`` reservations have ended, none is open, and each is known so well and
    has the outcome; their records.

    The first word may be a guess that another one mends: copies of an answer come behind its access
    log entry, and admission takes a hold back whenever its own stream breaks.
    """
    look = functools.partial(_settled, client, count, knowledge, outcome)
    return eventually(look, otherwise=lambda: f"{client.records()}")


def _settled(
    client: StackClient, count: int, knowledge: str, outcome: str | None
) -> list[dict[str, str]]:
    records = client.records()
    is_final = len(records) == count and all(
        record["state"] != "RESERVED"
        and record["source"] != "admission"
        and record["rank"] == knowledge
        and outcome in (None, record["outcome"])
        for record in records
    )
    return records if is_final and not client.pending() else []


def assert_charged(record: dict[str, str], truth: int) -> None:
    """What was charged is ``truth``, or an estimate by size: never below it or the reserve."""
    charged = int(record["charged"])
    if record["rank"] == GUESSED:
        assert charged >= int(record["reserved"]) >= truth
    else:
        assert charged == truth


def produced(client: StackClient) -> int:
    """Tokens of the one request with the service's id as its label, by the provider's journal."""
    (entry,) = eventually(lambda: client.journal(client.service))
    return int(entry["input_tokens"]) + int(entry["output_tokens_produced"])


def labelled(client: StackClient, script: str = "") -> dict[str, Any]:
    """Headers of a request with a script that is found in the journal by the service's id."""
    return {"x-fake": f"{script};label={client.service}"}
