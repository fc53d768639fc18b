"""The log: one event a line on one stream, whoever writes it."""

from __future__ import annotations

import io
import json
import logging

import numpy as np
import pytest
import structlog

from eplb.log import configure_logging


@pytest.fixture
def stream():
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield io.StringIO()
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_every_line_is_json_whatever_its_values_are(stream):
    """Array scalars, NaN and arrays do not lose a line."""
    configure_logging("info", "json", stream)

    structlog.get_logger().info(
        "cycle", digest=np.uint64(2**64 - 1), ratio=np.nan, ranks=np.arange(2), layers={1: (3,)}
    )

    [line] = lines(stream)
    assert (line["digest"], line["ratio"], line["ranks"], line["layers"]) == (
        2**64 - 1,
        None,
        [0, 1],
        {"1": [3]},
    )


def test_an_exception_is_part_of_its_line(stream):
    """One event, one line."""
    configure_logging("info", "json", stream)
    try:
        int("broken")
    except ValueError:
        structlog.get_logger().exception("cycle_failed")

    [line] = lines(stream)
    assert "ValueError: invalid literal" in line["exception"]


def test_lines_below_the_level_are_not_written(stream):
    """Level warning hides info."""
    configure_logging("warning", "json", stream)

    structlog.get_logger().info("hidden")
    structlog.get_logger().warning("shown")

    assert [line["event"] for line in lines(stream)] == ["shown"]


def test_libraries_write_in_the_same_form(stream):
    """Their warnings, not their chatter."""
    configure_logging("info", "json", stream)

    logging.getLogger("redis").info("chatter")
    logging.getLogger("redis").warning("lost %s", "connection")

    [line] = lines(stream)
    assert (line["event"], line["logger"], line["level"]) == ("lost connection", "redis", "warning")


def test_the_console_form_is_text(stream):
    """For a reader at a terminal; no colours into a file."""
    configure_logging("info", "console", stream)

    structlog.get_logger().info("cycle", pool="a")

    assert "pool=a" in stream.getvalue()
    assert "\x1b[" not in stream.getvalue()
