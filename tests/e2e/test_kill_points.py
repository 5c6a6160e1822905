"""``kill -9`` of the server, or of the reaper, at every step of a request: nothing stays open after
the deadline, and every root is charged as the table of outcomes says (core/outcomes.py).

A reservation of which nobody lived to report the end is charged its reserve, as a guess: also where
the client got Envoy's 503, because the access log entry that would tell is lost with the server
(Envoy sends it within 0.2 s, and starts take longer). What was settled or released before the kill
stands.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from extproc.stores import keys
from tests.support.client import eventually
from tests.support.killing import (
    ALONE,
    REFUSED,
    SHARED,
    End,
    KillingStack,
    killing_stack,
    other_roots,
)

NEVER, UNDONE, RELEASED, GUESSED, EXACT = End


@dataclass(frozen=True)
class Step:
    """The server dies ``at`` a step (see support/faulty_serve.py) of a request for ``model``.

    ``status`` is the client's answer, None where it is not certain. ``ends``: at the request's own
    root, and at the others.
    """

    at: str
    ends: tuple[End, ...]
    status: int | None
    fake: str = ""
    model: str = SHARED

    @property
    def is_forwarded(self) -> bool:
        return self.status != 503 or "reset" in self.fake


def step(at: str, *ends: End, status: int | None, fake: str = "", model: str = SHARED) -> Step:
    return Step(at, ends, status, fake, model)


# Of a server that has just started, the first reserve call only learns which policies there are.
STEPS = (
    step("admission.read", NEVER, status=503, model=ALONE),
    step("reserve.before:2", NEVER, status=503, model=ALONE),
    step("reserve.sent:2", GUESSED, status=503, model=ALONE),
    # Other slots, after the own one and in order: what was not asked yet holds nothing.
    step("other_reserve.before", GUESSED, NEVER, NEVER, status=503),
    step("other_reserve.sent", GUESSED, GUESSED, NEVER, status=503),
    step("other_reserve.sent:2", GUESSED, GUESSED, GUESSED, status=503),
    # The second of the others has refused. What is not undone yet is left to the reaper.
    step("undo.before", GUESSED, GUESSED, NEVER, status=503, model=REFUSED),
    step("undo.sent", UNDONE, GUESSED, NEVER, status=503, model=REFUSED),
    step("other_undo.sent", UNDONE, UNDONE, NEVER, status=503, model=REFUSED),
    step("admission.reply.before", GUESSED, GUESSED, GUESSED, status=503),
    step("admission.reply.after", GUESSED, GUESSED, GUESSED, status=None),
    # Metering fails open: the answer goes on.
    step("metering.headers", GUESSED, GUESSED, GUESSED, status=200),
    step("metering.chunk:3", GUESSED, GUESSED, GUESSED, status=200, fake="chunk_delay_ms=10"),
    step("metering.end", GUESSED, GUESSED, GUESSED, status=200),
    step("settle.before", GUESSED, status=200, model=ALONE),
    step("settle.sent", EXACT, status=200, model=ALONE),
    step("other_settle.before", EXACT, GUESSED, GUESSED, status=200),
    step("other_settle.sent", EXACT, EXACT, GUESSED, status=200),
    step("other_settle.sent:2", EXACT, EXACT, EXACT, status=200),
    # Envoy was told that metering settles, and then the settlement is lost.
    step("settle.late", GUESSED, GUESSED, GUESSED, status=200),
    step("ending.entry", EXACT, EXACT, EXACT, status=200),
    # Only the ending knows that the upstream did nothing, and its entry is lost.
    step("ending.entry", GUESSED, GUESSED, GUESSED, status=503, fake="reset=before_headers"),
    step("release.sent", RELEASED, GUESSED, GUESSED, status=500, fake="status=500"),
    step("other_release.before:2", RELEASED, RELEASED, GUESSED, status=500, fake="status=500"),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillingStack]:
    services = tuple(f"k{number}" for number in range(len(STEPS) + 2))
    run_dir = tmp_path_factory.mktemp("kill")
    with killing_stack(run_dir, services, first_step=STEPS[0].at) as world:
        yield world


def check(world: KillingStack, service: str, step: Step) -> None:
    """After the deadline nothing is open, and all ends are as they have to be."""
    eventually(world.is_clear)
    roots = (service, *other_roots(step.model))
    assert {root: world.end_at(root) for root in roots} == dict(zip(roots, step.ends, strict=True))
    assert world.immortal() <= {keys.ROOTS, keys.ROOTS_ACROSS}


@pytest.mark.parametrize("number", range(len(STEPS)), ids=lambda n: f"{STEPS[n].at}-{n}")
def test_a_server_killed(world: KillingStack, number: int) -> None:
    step, service = STEPS[number], f"k{number}"
    world.forget_all()
    world.set_trap("work", "")
    world.set_trap("serve", step.at)
    answer = world.ask(service, step.model, f"label={service};{step.fake}")
    world.wait_killed("serve")
    if step.status is not None:
        assert answer.status == step.status
        assert bool(world.journal(service)) == step.is_forwarded
    if answer.status == 200:
        assert answer.body.endswith(b"data: [DONE]\n\n")
    # The server that clears up is already the one that the next step kills: starts are slow.
    following = STEPS[number + 1].at if number + 1 < len(STEPS) else ""
    world.set_trap("serve", following)
    check(world, service, step)


@pytest.mark.parametrize(
    ("at", "killed"),
    [
        ("settle.sent", step("reserve.sent:2", GUESSED, status=503, model=ALONE)),
        ("other_settle.before", step("other_reserve.sent:2", *[GUESSED] * 3, status=503)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_reaper_killed_in_mid_sweep(world: KillingStack, at: str, killed: Step) -> None:
    """What the server left is taken up by a reaper, and what that left by the next one, once."""
    service = f"k{len(STEPS) + (killed.model == SHARED)}"
    world.forget_all()
    world.set_trap("work", at)
    world.set_trap("serve", killed.at)
    world.ask(service, killed.model)
    world.wait_killed("serve")
    world.wait_killed("work")
    world.set_trap("work", "")
    check(world, service, killed)
