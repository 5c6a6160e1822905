"""What is written to the log, and what is not."""

import json
import logging

import pytest

from extproc.logs import configure_logging


def test_a_client_that_leaves_while_its_answer_is_sent_is_no_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("info")
    log = logging.getLogger("grpc._cython.cygrpc")
    log.error("ExecuteBatchError raised in core by servicer method [%s]", "/x/Process")
    log.error("something else")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == [
        "something else"
    ]
