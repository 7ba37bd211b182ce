import pytest
import torch

from mixerloop.data.sentencepiece_tokenizer import SentencePieceTokenizer, train_tokenizer
from mixerloop.data.tokenizer import TextStream
from mixerloop.draws import Draws
from mixerloop.model.generation import Sampling, draw, generate
from mixerloop.model.initialization import fresh_model

TEXT = "The quick brown fox jumps over the lazy dog. Pack my box with five dozen jugs!"


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    path.write_bytes(train_tokenizer([TEXT] * 20, vocab_size=300))
    return path


@pytest.fixture
def tokenizer(tokenizer_path):
    return SentencePieceTokenizer(tokenizer_path)


def test_a_document_starts_with_the_start_token_and_decodes_to_itself(tokenizer):
    ids = tokenizer.encode("the quick 漢字 dog")
    assert ids[0] == tokenizer.bos_id
    assert tokenizer.decode(ids) == "the quick 漢字 dog"
    assert len(tokenizer.fingerprint) == 64


@pytest.mark.parametrize("prompt", ["", "The quick", "漢"])
def test_a_stream_gives_the_text_piece_by_piece_and_no_half_characters(tokenizer, prompt):
    whole = tokenizer.encode("The quick brown 漢字 fox ☃ jumps")
    start = tokenizer.encode(prompt)
    stream = TextStream(tokenizer, start)
    pieces = [stream.push(token) for token in whole[1:]]
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
    full = tokenizer.decode(start + whole[1:])
    assert tokenizer.decode(start) + "".join(pieces) + stream.pending() == full


def test_a_start_token_in_the_stream_loses_no_space(tokenizer):
    ids = tokenizer.encode("The quick fox") + tokenizer.encode("the lazy dog")
    stream = TextStream(tokenizer, ids[:1])
    assert "".join(map(stream.push, ids[1:])) == tokenizer.decode(ids)


def test_text_that_is_no_text_is_refused(tokenizer):
    with pytest.raises(ValueError, match="the text is not valid UTF-8"):
        tokenizer.encode("\udcff")


@pytest.mark.parametrize("content", [b"", b"not a model", None])
def test_what_is_not_a_tokenizer_is_refused(tmp_path, content):
    path = tmp_path / "broken.model"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"broken\.model: (not a SentencePiece model|there is no such)"
    ):
        SentencePieceTokenizer(path)


LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0]])


def drawn(sampling, draws=4000):
    tokens = draw(LOGITS.expand(draws, -1), sampling, Draws("test"))
    return torch.bincount(tokens, minlength=5) / draws


def test_tokens_are_drawn_with_the_softmax_probabilities():
    for temperature in (0.5, 1.0, 2.0):
        expected = (LOGITS[0] / temperature).softmax(-1)
        # five standard errors of a share among 4,000 draws
        torch.testing.assert_close(
            drawn(Sampling(temperature=temperature)), expected, rtol=0, atol=0.04
        )


def test_top_k_and_top_p_keep_the_likeliest_tokens():
    assert drawn(Sampling(temperature=0)).tolist() == [1, 0, 0, 0, 0]
    assert (drawn(Sampling(top_k=2)) > 0).tolist() == [True, True, False, False, False]
    probabilities = LOGITS[0].softmax(-1)
    just_two = probabilities[:2].sum().item() - 1e-3
    assert (drawn(Sampling(top_p=just_two)) > 0).tolist() == [True, True, False, False, False]
    for tiny_share in (1e-9, 1e-300):
        only_first = drawn(Sampling(top_p=tiny_share))
        assert only_first.tolist() == [1, 0, 0, 0, 0]
    for cold in (1e-9, 1e-45, 1e-300):
        assert drawn(Sampling(temperature=cold)).tolist() == [1, 0, 0, 0, 0]
    assert (drawn(Sampling(top_p=1.0)) > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature must be 0 or more"),
        ({"temperature": float("nan")}, "temperature must be 0 or more"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"top_p": 1.1}, "top_p must be above 0"),
    ],
)
def test_sampling_that_is_no_distribution_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


def test_one_seed_gives_one_text_and_greedy_follows_the_parallel_forward(tiny):
    model = fresh_model(tiny, seed=0)
    prompt = torch.tensor([[1, 2, 3], [4, 5, 6]])

    def run(**options):
        tokens = generate(model, prompt, max_tokens=8, **options)
        return torch.stack(list(tokens), dim=1)

    assert torch.equal(run(sampling=Sampling(), seed=1), run(sampling=Sampling(), seed=1))
    assert not torch.equal(run(sampling=Sampling(), seed=1), run(sampling=Sampling(), seed=2))
    greedy = run(sampling=Sampling(temperature=0), seed=0)
    sequence = prompt
    for index in range(8):
        following = model(sequence, positions=torch.tensor([-1]))[:, 0].argmax(-1)
        assert torch.equal(following, greedy[:, index])
        sequence = torch.cat([sequence, following[:, None]], dim=1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_is_drawn_from_logits_that_are_not_finite(temperature):
    logits = torch.tensor([[0.0, float("nan")]])
    with pytest.raises(FloatingPointError, match="the logits are not finite"):
        draw(logits, Sampling(temperature=temperature), Draws("test"))


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_is_none_is_refused(tiny, seed):
    with pytest.raises(ValueError, match="seed must be from 0"):
        fresh_model(tiny, seed=seed)


def test_generating_nothing_is_refused(tiny):
    model = fresh_model(tiny, seed=0)
    with pytest.raises(ValueError, match="max_tokens must be at least 1"):
        next(generate(model, torch.tensor([[1]]), max_tokens=0, sampling=Sampling(), seed=0))


def test_ids_beyond_the_tokenizer_are_never_drawn_and_never_decoded(tiny, tokenizer):
    model = fresh_model(tiny, seed=0)
    drawn = generate(
        model, torch.ones(64, 1, dtype=torch.int64), max_tokens=4, sampling=Sampling(), seed=0,
        num_ids=7,
    )  # fmt: skip
    assert max(int(tokens.max()) for tokens in drawn) == 6
    with pytest.raises(ValueError, match=f"token id {tokenizer.vocab_size} is outside"):
        tokenizer.decode([tokenizer.vocab_size])
