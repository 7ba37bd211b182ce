"""Results in files: one encoding, strict reading, and files of older versions named."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from mixerloop.evaluation.nll_result import NllAtPositions, NllFigures, NllResult, nll_details
from mixerloop.files import write_sealed
from mixerloop.measures import MEASURES, Measure, measure_of, score_named
from mixerloop.reports.study_results import read_study
from mixerloop.result_files import has_result, is_measured, read_result, write_result
from mixerloop.results import Estimate, PartialEstimate, decode, encode, result_provenance
from mixerloop.studies.comparing import compare_runs
from mixerloop.studies.reading import read_plan, read_run
from mixerloop.transport.result import TransportResult

NLL = Estimate(value=2.0, lower=1.5, upper=2.5, over="documents")
FIGURES = NllFigures(
    nll=NLL,
    bits_per_byte=None,
    accuracy=replace(NLL, value=0.5),
    by_position=(NllAtPositions(first=0, last=1, nll=NLL),),
    documents=2,
    tokens=5,
)
RESULT = NllResult(
    checkpoint="runs/one/checkpoints/step-4",
    schedule="2x(A2 F)",
    trained_schedule="2x(A2 F)",
    provenance=result_provenance(
        checkpoint_sha256="c", seed=1, data="d", forms={"gated_delta_rule": "torch"}
    ),
    **vars(FIGURES),
    context=32,
    warnings=("few",),
    by_passes={1: FIGURES},
)
OLD_PROVENANCE = {
    "created": "2026-01-01T00:00:00+00:00",
    "command": ["mixerloop"],
    "checkpoint_sha256": "c",
    "form": "native",
    "seed": 1,
}
OLD_HEAD = {"checkpoint": "c", "schedule": "A F", "trained_schedule": "A F"}
OLD_INTERVAL = {"value": 2.0, "lower": 1.5, "upper": 2.5}
OLD = {
    "nll": OLD_HEAD | {"nll": OLD_INTERVAL, "documents": 2, "tokens": 5, "context": 32},
    "hops": OLD_HEAD | {"accuracy_by_hop": [{"hops": 1, "accuracy": OLD_INTERVAL}]},
    "core": OLD_HEAD | {"core_v1": 0.1, "core_v1_interval": [0.0, 0.2], "tasks": {}},
    "transport": OLD_HEAD | {"itr": 1.2, "itr_interval": [1.1, 1.3], "marginal_itr": [1.0]},
}


def test_an_estimate_has_one_encoding():
    assert encode(NLL) == {"value": 2.0, "lower": 1.5, "upper": 2.5, "over": "documents"}
    undefined = PartialEstimate(value=None, lower=None, upper=None, over="windows")
    assert encode(undefined) == {"value": None, "lower": None, "upper": None, "over": "windows"}
    assert encode([float("nan"), float("inf"), 1.0]) == [None, None, 1.0]


def test_a_result_is_read_back_as_it_was_written(tmp_path):
    path = write_result(tmp_path / "results", RESULT)
    assert path == tmp_path / "results" / "nll.json"
    assert read_result(path.parent, MEASURES["nll"]) == RESULT
    assert has_result(path.parent, MEASURES["nll"])
    assert not has_result(path.parent, MEASURES["hops"])


def test_details_are_never_beside_the_result_of_other_details(tmp_path, monkeypatch):
    write_result(tmp_path, RESULT, details="1\n")
    assert is_measured(tmp_path, MEASURES["nll"])

    def interrupted(path, content):
        raise KeyboardInterrupt

    monkeypatch.setattr("mixerloop.result_files.write_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_result(tmp_path, RESULT, details="2\n")
    assert not is_measured(tmp_path, MEASURES["nll"])
    assert not has_result(tmp_path, MEASURES["nll"])
    monkeypatch.undo()
    write_result(tmp_path, RESULT, details="2\n")
    assert has_result(tmp_path, MEASURES["nll"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"nll": None}, "result.nll must be a table"),
        ({"nll": {"value": 1.0, "lower": 0.0, "upper": 2.0}}, "result.nll.over is missing"),
        ({"nll": encode(NLL) | {"over": "moons"}}, "result.nll.over = 'moons'"),
        ({"tokens": "5"}, "result.tokens = '5'"),
        ({"nlll": 1.0}, "result: unknown key nlll; did you mean nll?"),
        ({"by_passes": {"one": {}}}, "result.by_passes: the keys must be numbers"),
    ],
)
def test_what_is_not_as_it_was_written_is_named_with_the_command(tmp_path, change, named):
    folder = tmp_path / "run" / "results"
    path = write_result(folder, RESULT)
    write_sealed(path, encode(RESULT) | change)
    with pytest.raises(ValueError, match=r"nll\.json: not as it was written") as caught:
        read_result(folder, MEASURES["nll"])
    assert named in str(caught.value)
    assert str(caught.value).endswith(f"; measure again: mixerloop evaluate nll {folder.parent}")


@pytest.mark.parametrize("measure", [MEASURES[name] for name in OLD], ids=lambda one: one.name)
@pytest.mark.parametrize(
    ("folder", "run"),
    [
        ("run/results", "{}/run"),
        ("run/results/step-4", "{}/run/checkpoints/step-4"),
        ("kept", "RUN --out {}/kept"),
    ],
)
def test_a_result_of_an_older_version_is_rejected_by_name(tmp_path, measure: Measure, folder, run):
    place = tmp_path / folder
    place.mkdir(parents=True)
    old = OLD[measure.name] | {"provenance": OLD_PROVENANCE}
    (place / measure.file).write_text(json.dumps(old))
    assert not has_result(place, measure)
    with pytest.raises(ValueError, match="written by an older version") as caught:
        read_result(place, measure)
    again = f"{measure.command} {run.format(tmp_path)}"
    assert str(caught.value) == (
        f"{place / measure.file}: written by an older version; measure again: {again}"
    )


def test_results_of_an_older_version_are_not_compared(tmp_path):
    for name in ("one", "two"):
        details = nll_details(np.arange(2), np.array([4.0, 6.0]), np.array([2, 3]), None)
        write_result(tmp_path / name, RESULT, details=details)
    (tmp_path / "two" / "hops.json").write_text(
        json.dumps(OLD["hops"] | {"provenance": OLD_PROVENANCE})
    )
    with pytest.raises(ValueError, match=r"hops\.json: written by an older version"):
        compare_runs([tmp_path / "one", tmp_path / "two"])


def test_a_plan_and_a_comparison_of_an_older_version_are_rejected_by_name(tmp_path):
    part = {"name": "text", "match": "flops", "measure": ["nll"], "seeds": [1], "data": "stdlib"}
    arm = {"name": "A F", "schedule": "A F", "num_layers": 1, "d_model": 8, "vocab_size": 9}
    arm |= {"parameters": 99, "flops_per_token": 1.5, "macs": {"mixer": 3, "ffn": 4}}
    part |= {"compute_dtype": "float32", "transport": {}, "arms": [arm]}
    cell = {"number": 1, "name": "text/A F-seed1", "part": "text", "arm": "A F", "seed": 1}
    plan = {"name": "s", "title": "S", "about": "", "parts": [part], "prefill": None}
    plan["cells"] = [cell | {"measure": ["nll"]}]
    (tmp_path / "text").mkdir()
    plan["provenance"] = encode(result_provenance())
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(ValueError, match=r"plan\.json: written by an older version; study into"):
        read_study(tmp_path)
    write_sealed(tmp_path / "plan.json", plan)
    assert read_study(tmp_path).title == "S"
    (row,) = read_plan(tmp_path).rows
    assert (row.run, row.part, row.family, row.arm) == ("text/A F-seed1", "text", "text", "A F")
    assert (row.parameters, row.macs["ffn"], row.match, row.seed) == (99, 4, "flops", 1)
    assert (row.documents, row.parent, row.measured_in("nll")) == (None, None, "float32")
    for gone in ("macs", "parameters"):
        damaged = {**plan, "parts": [part | {"arms": [{k: arm[k] for k in arm if k != gone}]}]}
        write_sealed(tmp_path / "plan.json", damaged)
        with pytest.raises(ValueError, match=r"plan\.json: not as it was written .* again$"):
            read_study(tmp_path)
    write_sealed(tmp_path / "plan.json", plan)
    old = {"arms": [{"name": "A F", "runs": [], "nll": 2.0}], "pairs": [], "warnings": []}
    (tmp_path / "text" / "comparison.json").write_text(
        json.dumps(old | {"provenance": OLD_PROVENANCE})
    )
    with pytest.raises(ValueError, match="written by an older version; compare again: mixerloop"):
        read_study(tmp_path)


def test_every_registered_result_type_belongs_to_one_measure():
    for measure in MEASURES.values():
        assert measure_of(measure.result_type()) is measure
    with pytest.raises(ValueError, match="no measure has this result type"):
        measure_of(type("Other", (TransportResult,), {}))


def test_scores_of_core_have_their_version_in_the_title():
    assert score_named("core_v1").title == "CORE (v1)"
    assert score_named("nll").title == "held-out NLL"
    with pytest.raises(ValueError, match="unknown score 'nl'; did you mean nll"):
        score_named("nl")


def test_provenance_takes_no_unknown_fact():
    with pytest.raises(ValueError, match="provenance: unknown key sed; did you mean seed"):
        result_provenance(sed=1)
    assert decode(type(RESULT.provenance), encode(RESULT.provenance)) == RESULT.provenance


DETAILS = nll_details(np.arange(2), np.array([4.0, 6.0]), np.array([2, 3]), None)


@pytest.mark.parametrize("name", ["nll.json", "nll.jsonl"])
def test_a_flipped_bit_in_a_result_is_never_read_as_another_number(tmp_path, name):
    write_result(tmp_path, RESULT, details=DETAILS)
    whole = (tmp_path / name).read_bytes()
    for at in range(0, 8 * len(whole), 61):
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << at % 8
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(ValueError, match="measure again: mixerloop evaluate nll RUN") as caught:
            read_run(tmp_path)
        assert str(caught.value).startswith(f"{tmp_path / name}: ")
        assert not has_result(tmp_path, MEASURES["nll"])


def test_details_of_another_result_are_not_read(tmp_path):
    write_result(tmp_path / "one", RESULT, details=DETAILS)
    others = nll_details(np.arange(2), np.array([5.0, 7.0]), np.array([2, 3]), None)
    write_result(tmp_path / "two", RESULT, details=others)
    shutil.copy(tmp_path / "one/nll.jsonl", tmp_path / "two/nll.jsonl")
    with pytest.raises(ValueError, match=r"two/nll\.jsonl: not as it was written"):
        read_run(tmp_path / "two")
    (tmp_path / "two/nll.jsonl").unlink()
    with pytest.raises(ValueError, match=r"two/nll\.jsonl: there is no such file; measure again"):
        read_run(tmp_path / "two")


def test_a_result_that_could_not_be_read_back_is_not_written(tmp_path):
    result = replace(RESULT, nll=replace(NLL, upper=float("nan")))
    with pytest.raises(ValueError, match=r"nll\.json: not written: result\.nll\.upper is nan"):
        write_result(tmp_path / "new", result, details=DETAILS)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["nll.json", "nll.jsonl"])
@pytest.mark.parametrize("content", ["mine", "", "{}", '{"nll": 2.0}'])
def test_a_file_of_the_user_is_not_replaced_by_a_result(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(
        ValueError, match="not a file that mixerloop wrote, or changed; --overwrite"
    ) as caught:
        write_result(tmp_path, RESULT, details=DETAILS)
    assert str(caught.value).startswith(f"{tmp_path / name}: ")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == content
    write_result(tmp_path, RESULT, details=DETAILS, overwrite=True)
    assert has_result(tmp_path, MEASURES["nll"])


@pytest.mark.parametrize("name", ["nll.json", "nll.jsonl"])
def test_a_result_is_not_written_through_a_link(tmp_path, name):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / name).symlink_to(tmp_path / "mine")
    with pytest.raises(ValueError, match="is a link, which is not written through; --overwrite"):
        write_result(tmp_path / "results", RESULT, details=DETAILS)
    write_result(tmp_path / "results", RESULT, details=DETAILS, overwrite=True)
    assert has_result(tmp_path / "results", MEASURES["nll"])
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("target", ["nowhere", "nll.json"])
def test_a_link_without_a_file_behind_it_is_no_missing_result(tmp_path, target):
    """Such a result is damaged; `Path.exists` is false for it."""
    (tmp_path / "nll.json").symlink_to(target)
    assert is_measured(tmp_path, MEASURES["nll"])
    with pytest.raises(ValueError, match=r"nll\.json: "):
        read_result(tmp_path, MEASURES["nll"])


def test_damaged_missing_and_older_results_are_measured_again_without_overwrite(tmp_path):
    path = write_result(tmp_path, RESULT, details=DETAILS)
    whole = path.read_bytes()
    old = json.dumps(OLD["nll"] | {"provenance": OLD_PROVENANCE}).encode()
    for damaged in (whole[:-9], whole.replace(b"2.5", b"3.5"), old, None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        write_result(tmp_path, RESULT, details=DETAILS)
        assert path.read_bytes() == whole
