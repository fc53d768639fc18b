"""Numbers on the command line are finite and in range."""

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from eplb.cli.numbers import Finite


@click.command()
@click.argument("value", type=Finite(0, 2))
def echo(value):
    click.echo(repr(value))


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "NaN", "1e999", "3", "-1", "two", ""])
def test_what_is_no_number_of_the_range_is_usage(text):
    """Exit code 2."""
    assert CliRunner().invoke(echo, ["--", text]).exit_code == 2


@given(st.floats(0, 2))
def test_every_number_of_the_range_is_taken_as_it_is(value):
    """To the last digit."""
    assert CliRunner().invoke(echo, [repr(value)]).output.strip() == repr(value)
