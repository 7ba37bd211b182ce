"""Study files: what they say, and what is refused, with the line that says it."""

import dataclasses
import functools

import pytest

from mixerloop.catalog import STUDIES
from mixerloop.config import preset
from mixerloop.files import read_sealed, write_sealed
from mixerloop.model.accounting import training_flops_per_token
from mixerloop.model.initialization import meta_model
from mixerloop.studies.plan import FLOPS_AGREE, make_plan
from mixerloop.studies.study import PARENT, line_of, read_study
from mixerloop.studies.table import Table
from mixerloop.studies.variants import arms_of
from mixerloop.training.fresh_run import init_run
from small_model import model_file, training_file
from toys import toy_attention  # noqa: F401

STUDY = """title = "Small"

[[parts]]
name = "hops"
config = "small.toml"
prepare = ["hops"]
arms = ["no_loop", "mixer_loop(2)"]
seeds = [1, 2]
measure = ["nll", "hops", "transport"]

[parts.train]
steps = 6
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "small.toml").write_text(training_file(train={"global_batch": 2}))

    def study(old="", new=""):
        assert STUDY.count(old) == 1 or not old
        (tmp_path / "study.toml").write_text(STUDY.replace(old, new) if old else STUDY)
        return tmp_path / "study.toml"

    return study


def plan_of(path):
    return make_plan(read_study(path), path.parent / "out")


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The plan of a study of the catalog, which is made once."""
    place = tmp_path_factory.mktemp("plans")

    @functools.cache
    def plan(name):
        path, parent = STUDIES / f"{name}.toml", None
        if PARENT in path.read_text():
            (place / "deep.toml").write_text(model_file(num_layers=30, schedule="no_loop"))
            parent = init_run(str(place / "deep.toml"), place / "parent").run
        return make_plan(read_study(path), place / name, parent=parent)

    return plan


@pytest.mark.parametrize("name", sorted(path.stem for path in STUDIES.glob("*.toml")))
def test_the_studies_of_the_catalog_can_be_planned(planned, name):
    plan = planned(name)
    for cells in Table(plan.rows).by("part").values():
        part = plan.file.part(cells.first.family)
        arms = arms_of(part, cells.first.size)
        if cells.first.is_tuning:
            assert {cell.seed for cell in cells} == {part.tune_seed}
            continue
        wanted = [(arm.title, seed) for arm in arms for seed in arm.seeds or part.seeds]
        assert sorted((cell.arm, cell.seed) for cell in cells) == sorted(wanted)
    assert [cell.number for cell in plan.rows] == list(range(1, len(plan.rows) + 1))


def test_routing_is_measured_of_models_that_loop_their_experts(planned):
    plan = planned("experts")
    routed = {cell.arm for cell in plan.rows if "routing" in cell.measure}
    assert routed == {"ffn_loop", "full_loop"}
    sparse = [set(cell.measure) for cell in Table(plan.rows).where(part="sparse")]
    assert set.union(*sparse) == {"nll", "transport", "routing"}
    assert {cell.measure for cell in plan.rows if cell.is_tuning} == {("nll",)}


def test_the_released_study_has_the_residual_and_the_weights_of_each_architecture(planned):
    plan = planned("released-15m")
    rules = {cell.arm: cell.with_config().model.pass_rules() for cell in plan.rows}
    units = {arm: rule["pass_residual"].unit if rule else None for arm, rule in rules.items()}
    assert units == {
        **{"no_loop": None, "mixer_loop": "mixer", "full_loop": "stack", "ffn_loop": "ffn"}
    }
    assert {cell.with_config().for_training()[1].init for cell in plan.rows} == {"released"}
    table = 4 * preset("15m").d_model
    counts = {cell.arm: cell.parameters for cell in plan.rows}
    assert counts["no_loop"] == 15_724_416
    assert {counts[name] - table for name in units if name != "no_loop"} == {15_724_416}


@pytest.mark.parametrize("name", ["paper-15m", "released-15m"])
def test_what_the_paper_measured_in_bfloat16_is_measured_in_bfloat16(name, planned):
    part, *_ = planned(name).rows
    assert part.compute_dtype == "bfloat16"
    in_bfloat16 = {name for name, dtype in part.measure_in.items() if dtype == "bfloat16"}
    assert in_bfloat16 == {"core", "transport"}
    others = dict.fromkeys(("nll", "hops", "task", "routing"), "float32")
    assert part.measure_in == others | {"core": "bfloat16", "transport": "bfloat16"}


def test_a_begun_study_may_measure_more_but_not_in_another_type(write, tmp_path):
    more = 'measure = ["nll", "hops", "transport"]'
    first = plan_of(write(more, 'measure = ["nll"]'))
    first.folder.mkdir()
    first.write()
    plan_of(write()).check_unchanged()
    other = plan_of(write("[parts.train]", '[parts.measure_in]\nnll = "bfloat16"\n\n[parts.train]'))
    with pytest.raises(
        ValueError, match="was made with nll in float32, and the study now says bfl"
    ):
        other.check_unchanged()
    kept = read_sealed(first.folder / "plan.json")
    for row in kept["rows"]:
        row["measure_in"] = {}  # older plans lack it
    write_sealed(first.folder / "plan.json", kept)
    plan_of(write()).check_unchanged()


def test_cells_differ_in_schedule_and_seed_and_in_nothing_else(write):
    plan = plan_of(write())
    assert [cell.run for cell in plan.rows] == [
        *("hops/no_loop-seed1", "hops/mixer_loop(2)-seed1"),
        *("hops/no_loop-seed2", "hops/mixer_loop(2)-seed2"),
    ]
    first = plan.rows[0].with_config()
    for cell in plan.rows:
        data, train = cell.with_config().for_training()
        assert train.steps == 6
        assert train.seed == cell.seed
        assert data.path == str(plan.folder / "data" / "hops")
        assert dataclasses.replace(cell.with_config().model, schedule="no_loop") == first.model


def test_a_stack_without_loops_is_deepened_to_the_compute_of_a_loop(planned):
    plan = planned("text-small")
    cells = {cell.arm: cell for cell in plan.rows}
    deep, mixer = cells["deeper_no_loop"], cells["mixer_loop"]
    assert deep.flops_per_token == pytest.approx(mixer.flops_per_token, rel=FLOPS_AGREE)
    assert deep.config.model.num_layers > mixer.config.model.num_layers == preset("nano").num_layers
    assert deep.parameters > mixer.parameters == cells["no_loop"].parameters


@pytest.mark.parametrize(
    ("old", "new", "line", "named"),
    [
        ('title = "Small"', 'titel = "Small"', 1, "unknown key titel; did you mean title?"),
        ("seeds = [1, 2]", "seed = [1, 2]", 8, "unknown key seed; did you mean seeds?"),
        ("seeds = [1, 2]", "seeds = [1, 1]", 8, "give each seed once"),
        ("seeds = [1, 2]", 'seeds = "1"', 8, "must be a list"),
        ('"nll", "hops"', '"nll", "hopz"', 9, "unknown measure 'hopz'; did you mean hops?"),
        ("[parts.train]", "[parts.measure_in]\nnl = 'float32'\n[parts.train]", 12, "mean nll?"),
        ("[parts.train]", "[parts.measure_in]\nnll = 'half'\n[parts.train]", 12, "'half'"),
        ("mixer_loop(2)", "mixr_loop(2)", 7, "did you mean mixer_loop?"),
        ("mixer_loop(2)", "3x(A F)", 7, "has 3 layers; the model has 2"),
        ('"mixer_loop(2)"', '"no_loop"', 7, "two models are called 'no_loop'"),
        ('"small.toml"', '"smal.toml"', 5, "smal.toml: there is no such config"),
        ("steps = 6", "stps = 6", 12, "unknown key stps; did you mean steps?"),
        (
            "[parts.train]",
            "[parts.model]\nd_ffn = 0\n[parts.train]",
            12,
            "swiglu.d_ffn must be from",
        ),
        ("steps = 6", "seed = 6", 12, "seed is for the study to set"),
        ("steps = 6", "warmup_steps = 9", 12, "more than the 4 steps"),
        ('["hops"]', "[]", 6, "'' makes no data; known: hops, "),
        ('["hops"]', '["hopps"]', 6, "did you mean hops?"),
        ('["hops"]', '["hops", "--sed", "5"]', 6, "unknown option --sed; did you mean --seed?"),
        ('["hops"]', '["--help"]', 6, "'--help' makes no data; known: hops"),
        ('["hops"]', '["text", "-h"]', 6, "unknown option -h; known: --tokenizer"),
        ("seeds = [1, 2]", f"seeds = [{10**30}]", 8, "seed must be from 0 to 2^63 - 1"),
        ("[parts.train]", f"[parts.transport]\nwindows = {10**30}\n[parts.train]", 12, "from 1 to"),
        ('["hops"]', '["hops", "--num-nodes", "1"]', 6, "hops.num_nodes must be from 2"),
        ('["hops"]', '["stdlib"]', 9, "hops can be measured on hops only"),
        ('"no_loop", ', '{ schedule = "no_loop", name = "../x" }, ', 7, "cannot name a folder"),
        ('name = "hops"', 'name = "figures"', 4, "cannot name a folder"),
        ("[parts.train]", "[parts.transport]\npositions = 0\n[parts.train]", 12, "positions must"),
        ("seeds =", 'match = "flops"\nseeds =', 8, "needs a budget in flops, and train has steps"),
        ("seeds =", 'match = "seconds"\nseeds =', 8, "needs a budget in seconds"),
        ("seeds =", 'from = "{parent}"\nseeds =', 8, "a run of yours: --parent RUN"),
        ("seeds =", 'from = "nix"\nseeds =', 8, "nix: there is no such run"),
        ("seeds =", 'parent = "nix"\nseeds =', 8, "unknown key parent; "),
    ],
)
def test_what_cannot_be_run_is_refused_by_line(write, old, new, line, named):
    path = write(old, new)
    with pytest.raises(ValueError, match=r"study\.toml, line") as caught:
        plan_of(path)
    message = str(caught.value)
    assert f"study.toml, line {line}: " in message
    assert named in message


def test_models_start_from_a_parent_that_fits_them(write, tmp_path):
    init_run(str(tmp_path / "small.toml"), tmp_path / "base", schedule="no_loop")
    near = write("seeds =", 'from = "base"\nseeds =')
    parents = [cell.parent for cell in plan_of(near).rows]
    assert [parent.folder for parent in parents if parent] == 4 * [str(tmp_path / "base")]
    named = write("seeds =", 'from = "{parent}"\nseeds =')
    plan = make_plan(read_study(named), tmp_path / "out", parent=tmp_path / "base")
    for row in plan.rows:
        assert row.parent is not None
        assert (row.parent.schedule, row.parent.step) == ("2x(A F)", 0)
    wide = write("[parts.train]", "[parts.model]\nd_ffn = 32\n[parts.train]")
    wide.write_text(wide.read_text().replace("seeds =", 'from = "base"\nseeds ='))
    with pytest.raises(ValueError, match=r"line 8: 'no_loop': .*base: does not fit the model: lay"):
        plan_of(wide)
    with pytest.raises(ValueError, match=r"no part has from = .{parent}., so parent has no mean"):
        make_plan(read_study(write()), tmp_path / "out", parent=tmp_path / "base")


def test_no_number_of_layers_may_be_near_enough(write):
    arm = '{ name = "deep", schedule = "no_loop", layers_for_flops_of = "no_loop" }'
    path = write('"mixer_loop(2)"', arm)
    assert plan_of(path).rows[1].with_config().model.num_layers == 2
    far = arm.replace('"no_loop", layers', '"mixer_loop(50)", layers')
    with pytest.raises(ValueError, match=r"line 7: 'deep' with 1 layers comes to \+"):
        plan_of(write('"mixer_loop(2)"', far))
    unknown = arm.replace('flops_of = "no_loop"', 'flops_of = "nolop"')
    with pytest.raises(ValueError, match="there is no other model 'nolop' with"):
        plan_of(write('"mixer_loop(2)"', unknown))


def test_a_synthetic_task_is_measured_on_synthetic_data_only(write):
    path = write('prepare = ["hops"]', 'prepare = ["stdlib"]')
    path.write_text(path.read_text().replace('"nll", "hops", "transport"', '"task"'))
    with pytest.raises(ValueError, match=r"line 9: .*task can be measured on hops"):
        plan_of(path)


def test_flops_are_counted_over_the_windows_of_the_data(write):
    """Attention costs more per token in longer windows; those of hops have 39 tokens."""
    model = '[parts.model]\nmixer = "toy_attention"\n\n[parts.train]'
    for cell in plan_of(write("[parts.train]", model)).rows:
        assert cell.context == 39
        stack = meta_model(cell.with_config().model)
        assert cell.flops_per_token == training_flops_per_token(stack, context=39)
        assert cell.flops_per_token < training_flops_per_token(stack, context=64)


def test_lines_are_found_in_tables_of_tables():
    text = "a = 1\n[[parts]]\nb = 1\n[parts.train]\nc = 1\n[[parts]]\nb = 2\n"
    assert line_of(text, "parts[0].b") == 3
    assert line_of(text, "parts[1].b") == 7
    assert line_of(text, "parts[0].train.c must be") == 5
    assert line_of(text, "parts[1].nothing") == 6
    assert line_of(text, "else") is None
