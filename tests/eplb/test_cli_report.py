"""eplb report: a page, words on stdout, progress on stderr, and errors that say what to do."""

import html
import json

import numpy as np
import pytest
from report_world import skewed, spread_map

from eplb.cli.main import main
from eplb.formats.neutral import NeutralMap, write_map
from placement import Placement

POOL = ["--ranks", "4", "--nodes", "2", "--slots-per-rank", "5", "--effort", "fast"]


@pytest.fixture
def trace(tmp_path):
    np.savez(tmp_path / "trace.npz", counts=skewed(12), domain=np.array(["law", "math"] * 6))
    return tmp_path / "trace.npz"


@pytest.fixture
def run(trace, capsys):
    def started(*arguments):
        code = main(
            [str(each) for each in ("report", trace, *POOL, "-o", trace.parent / "out.html", *arguments)]
        )
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return started


def map_file(path, *, layers=(0, 1, 2), slots=5):
    write_map(path, NeutralMap(4, 2, slots, 16, layers, spread_map(slots=4 * slots)))
    return path


def test_a_page_is_written_and_its_verdict_said(run, trace):
    """Exit code 0."""
    code, out, err = run()
    assert code == 0
    assert "This will pay" in out
    assert "solving" in err
    page = (trace.parent / "out.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "order of ids" in page


def test_maps_are_compared_and_nothing_is_solved_unless_asked(run, trace):
    """By the names of their files."""
    given = map_file(trace.parent / "dealt.json")
    code, _, err = run("--map", given)
    assert (code, "solving" in err) == (0, False)
    page = (trace.parent / "out.html").read_text()
    assert "After: dealt.json" in page
    assert "held-out" not in page
    code, _, err = run("--map", given, "--plan", "--current", given)
    assert (code, "solving" in err) == (0, True)
    assert "Before: dealt.json" in (trace.parent / "out.html").read_text()


def test_layers_are_named_as_the_model_does(run, trace):
    """Where the options say so."""
    assert run("--moe-layers", "3-5", "--hidden-layers", "7")[0] == 0
    page = (trace.parent / "out.html").read_text()
    assert "layer of the model" in page
    assert "layer 5" in page


def test_a_map_of_another_pool_or_model_is_refused(run, trace):
    """The numbers of both sides are named; the page is not written."""
    code, _, err = run("--map", map_file(trace.parent / "wide.json", slots=6))
    assert (code, "(4, 6, 16, 3)" in err, "(4, 5, 16, 3)" in err) == (1, True, True)
    code, _, err = run("--moe-layers", "3-5", "--map", map_file(trace.parent / "rows.json"))
    assert (code, "--moe-layers" in err) == (1, True)
    assert not (trace.parent / "out.html").exists()


def test_a_map_that_lost_an_expert_with_load_is_refused(run, trace):
    """By its file, row and expert."""
    rows = spread_map().physical_to_logical.copy()
    rows[1, rows[1] == 5] = 6
    write_map(trace.parent / "lost.json", NeutralMap(4, 2, 5, 16, (0, 1, 2), Placement(rows)))
    code, _, err = run("--map", trace.parent / "lost.json")
    assert (code, "lost.json: row 1 has no slot for expert 5" in err) == (1, True)


def test_impossible_pools_and_too_many_maps_are_errors(run, trace):
    """Exit code 1 for what does not fit, 2 for the command line."""
    assert run("--slots-per-rank", "3")[0] == 1
    given = map_file(trace.parent / "dealt.json")
    assert run(*["--map", given] * 5)[0] == 2
    assert run("--holdout", "1")[0] == 2


def test_a_page_is_never_written_over_what_it_is_about_nor_planned_in_vain(run, trace, capsys):
    """Both are found before anything is read."""
    old = trace.read_bytes()
    code, _, err = run("-o", trace)
    assert (code, "would be lost" in err, trace.read_bytes() == old) == (1, True, True)
    code, _, err = run("-o", trace.parent / "none" / "out.html")
    assert (code, "there is no folder" in err, "solving" in err) == (1, True, False)


def test_a_hold_out_that_is_no_number_is_usage(run):
    """NaN is in every range that only compares."""
    code, _, err = run("--holdout", "nan")
    assert (code, "nan is no finite number" in err) == (2, True)


def test_a_map_from_a_file_is_told_to_be_perhaps_a_fit(run, trace):
    """On stdout too."""
    _, out, _ = run("--map", map_file(trace.parent / "dealt.json"))
    assert "does not say what the map was planned on" in out


def test_the_verdict_is_data_too(run, trace):
    """The same words as on the page."""
    code, out, _ = run("--json")
    found = json.loads(out)
    assert (code, found["verdict"]["answer"], found["verdict"]["code"]) == (0, "pays", "pays")
    assert found["written"] == str(trace.parent / "out.html")
    page = (trace.parent / "out.html").read_text()
    assert html.escape(found["verdict"]["headline"], quote=False) in page


def test_formats_of_maps_can_be_named(run, trace):
    """Of the live one, and of those that are compared."""
    given = map_file(trace.parent / "dealt.json")
    assert (
        run("--map", given, "--map-from", "neutral", "--current", given, "--current-from", "neutral")[0] == 0
    )
    assert run("--map", given, "--map-from", "trtllm")[0] == 1
    assert run("--current", given, "--current-from", "nothing")[0] == 2
