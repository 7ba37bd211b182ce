"""Every way of scoring against the plain one: each sequence alone, with all its logits."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import needs
from mixerloop.evaluation import looped_scorer
from mixerloop.evaluation.hugging_face_scorer import HuggingFaceScorer
from mixerloop.evaluation.looped_scorer import LoopedScorer
from mixerloop.evaluation.scorer import Candidate, batches_by_length, common_prefix, padded
from mixerloop.model.initialization import fresh_model
from mixerloop.schedule import LOOPS
from small_model import small_config

TOLERANCE = 2e-5  # nats, in float32: sums over some hundred terms of some ten nats


def random_questions(seed, *, num=12, vocab=50, longest=90):
    """Questions whose candidates share beginnings of any length, none or all of it."""
    generator = np.random.default_rng(seed)
    questions = []
    for _ in range(num):
        shared = generator.integers(vocab, size=generator.integers(0, longest))
        candidates = []
        for _ in range(generator.integers(1, 5)):
            tail = generator.integers(vocab, size=generator.integers(1, 9))
            tokens = np.concatenate([shared, tail])
            tokens = np.concatenate([[1], tokens]).astype(np.int64)
            first = generator.integers(1, len(tokens) + 1)
            candidates.append(Candidate(tokens, int(max(first, len(tokens) - 12))))
        questions.append(candidates)
    return questions


def plainly(model, candidate, schedule=None):
    """By the definition: all logits of the whole sequence."""
    with torch.no_grad():
        logits = model(torch.from_numpy(candidate.tokens)[None, :-1], schedule=schedule)[0].double()
    at = logits[candidate.start - 1 :]
    labels = torch.from_numpy(candidate.tokens[candidate.start :])
    losses = torch.nn.functional.cross_entropy(at, labels, reduction="none")
    return losses.numpy(), at.argmax(-1).numpy()


@pytest.fixture
def model(tiny):
    return fresh_model(dataclasses.replace(tiny, schedule="mixer_loop(3)"), seed=0)


def assert_scores(found, questions, expected):
    """Losses within rounding and the same most likely tokens as `expected(candidate)`."""
    for candidates, scores in zip(questions, found, strict=True):
        for candidate, one in zip(candidates, scores, strict=True):
            losses, most_likely = expected(candidate)
            np.testing.assert_allclose(one.losses, losses, atol=TOLERANCE)
            np.testing.assert_array_equal(one.most_likely, most_likely)


@pytest.mark.parametrize(
    ("loop", "share_prefixes"), [*((loop, True) for loop in LOOPS), ("mixer_loop", False)]
)
def test_scores_are_those_of_every_sequence_whole(tiny, loop, share_prefixes):
    model = fresh_model(dataclasses.replace(tiny, schedule=loop), seed=0)
    questions = random_questions(1, num=6)
    found = LoopedScorer(model, share_prefixes=share_prefixes).score(questions)
    wide = model.double()
    assert_scores(found, questions, lambda candidate: plainly(wide, candidate))


@given(st.integers(0, 10**6), st.sampled_from([64, 256, 8192]), st.integers(1, 8))
@settings(max_examples=8)
def test_batches_of_any_size_give_the_same_scores(seed, most_tokens, most_states):
    sizes = {"num_layers": 2, "d_model": 16, "num_heads": 2, "d_head": 8, "d_ffn": 24}
    model = fresh_model(small_config(**sizes, vocab_size=50, schedule="mixer_loop(2)"), seed=0)
    questions = random_questions(seed, num=6)
    expected = LoopedScorer(model, share_prefixes=False).score(questions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(looped_scorer, "BATCH_TOKENS", most_tokens)
        scorer = LoopedScorer(model)
        scorer._most_states = most_states
        found = scorer.score(questions)
    for a, b in zip(expected, found, strict=True):
        for one, other in zip(a, b, strict=True):
            np.testing.assert_allclose(one.losses, other.losses, atol=TOLERANCE)


def test_another_schedule_is_scored_when_it_is_asked_for(model, tiny):
    questions = random_questions(2, num=1)
    schedule = LOOPS["full_loop"](tiny.num_layers, 2)
    found = LoopedScorer(model, schedule=schedule).score(questions)
    assert_scores(found, questions, lambda candidate: plainly(model, candidate, schedule))


def test_a_shared_beginning_is_run_once(model):
    beginning = np.arange(1, 41)
    candidates = [Candidate(np.array([*beginning, *end]), 40) for end in ([2, 3], [4, 5], [6, 7])]
    scorer = LoopedScorer(model)
    scorer.score([candidates])
    assert scorer.tokens_processed == 39 + 3 * 2  # the last shared token predicts, so it branches
    plain = LoopedScorer(model, share_prefixes=False)
    plain.score([candidates])
    assert plain.tokens_processed == 3 * 41


def test_candidates_that_differ_in_their_last_token_are_one_sequence(model):
    candidates = [Candidate(np.array([*range(1, 41), end]), 40) for end in (2, 3, 4, 5)]
    scorer = LoopedScorer(model)
    (found,) = scorer.score([candidates])
    assert scorer.tokens_processed == 40
    assert len({float(scores.losses[0]) for scores in found}) == 4
    wide = model.double()
    assert_scores([found], [candidates], lambda candidate: plainly(wide, candidate))


@pytest.mark.parametrize("share_prefixes", [True, False])
def test_equal_candidates_tie_exactly(model, share_prefixes):
    other, same = np.array([1, 2, 3, 4, 9, 8, 7]), np.array([1, 2, 3, 4, 5, 6, 7])
    tokens = [np.concatenate([np.arange(1, 40), tail]) for tail in (other, same, same)]
    (found,) = LoopedScorer(model, share_prefixes=share_prefixes).score(
        [[Candidate(sequence, 40) for sequence in tokens]]
    )
    np.testing.assert_array_equal(found[1].losses, found[2].losses)


def test_nothing_to_score_scores_nothing(model):
    tokens = np.arange(1, 10)
    (found,) = LoopedScorer(model).score([[Candidate(tokens, 9), Candidate(tokens, 8)]])
    assert [len(scores.losses) for scores in found] == [0, 1]
    assert LoopedScorer(model).score([]) == []


def test_losses_that_are_no_numbers_are_refused(model):
    with torch.no_grad():
        model.final_norm.weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="the losses are not finite"):
        LoopedScorer(model).score(random_questions(3))


def test_bfloat16_stays_near(model):
    questions = random_questions(4, num=4)
    narrow = LoopedScorer(model, compute_dtype="bfloat16").score(questions)
    for a, b in zip(LoopedScorer(model).score(questions), narrow, strict=True):
        for one, other in zip(a, b, strict=True):
            np.testing.assert_allclose(one.losses, other.losses, atol=0.05)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_hugging_face_model_is_scored_like_by_hand(kind):
    transformers = needs.module("transformers")
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    if kind == "llama":
        sizes["intermediate_size"] = 24
    config = transformers.AutoConfig.for_model(kind, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    questions = random_questions(5)

    def by_hand(candidate):
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(candidate.tokens)[None]).logits[0]
        log_p = logits.double().log_softmax(-1)[candidate.start - 1 : -1]
        labels = torch.from_numpy(candidate.tokens[candidate.start :])
        return -log_p.gather(-1, labels[:, None])[:, 0], log_p.argmax(-1)

    assert_scores(HuggingFaceScorer(model).score(questions), questions, by_hand)
    with pytest.raises(ValueError, match="in training mode"):
        HuggingFaceScorer(model.train())


# --- batches -------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 1000), max_size=60), st.integers(1, 4000), st.integers(1, 20))
def test_batches_hold_everything_once_within_their_limits(lengths, most_tokens, most_rows):
    batches = batches_by_length(lengths, most_tokens=most_tokens, most_rows=most_rows)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) <= most_rows
        width = max(lengths[index] for index in batch)
        assert len(batch) == 1 or width * len(batch) <= most_tokens


def test_rows_are_padded_behind():
    assert padded([np.array([1, 2, 3]), np.array([4])]).tolist() == [[1, 2, 3], [4, 0, 0]]


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=4))
def test_the_common_prefix_is_the_longest_there_is(lists):
    found = common_prefix([np.array(tokens) for tokens in lists])
    assert all(tokens[:found] == lists[0][:found] for tokens in lists)
    longer = [tuple(tokens[: found + 1]) for tokens in lists]
    assert min(map(len, lists)) == found or len(set(longer)) > 1
