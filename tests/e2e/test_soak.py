"""Five minutes of the soak, at a rate that leaves the machine to the other tests."""

from pathlib import Path

from tests.soak.run import Plan, flat, soak

SECONDS, RATE = 300.0, 8.0


def test_nothing_grows_and_nothing_is_left_behind(tmp_path: Path) -> None:
    result = soak(Plan(rate=RATE, seconds=SECONDS, services=200, ghosts=1000), tmp_path)
    values = flat(result)
    assert result.faults == [], values
    assert values["books.drift"] == 0
    # It was no empty run: most requests were admitted, settled, and found in both books.
    assert values["requests"] > SECONDS * RATE
    assert values["books.reservations"] > 0.7 * values["requests"]
    assert values["books.journal"] > 0.7 * values["requests"]
