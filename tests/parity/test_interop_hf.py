"""The exported model in `transformers`: the same logits, and all that others expect of a model."""

import dataclasses
import json
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is an extra: make peers installs it")

from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

import mixerloop.interop.hf
from mixerloop.interop.folders import export
from mixerloop.model.initialization import fresh_model
from mixerloop.schedule import LOOPS

LOGITS_AGREE = 1e-6


@pytest.fixture(params=LOOPS)
def both(request, tiny, tmp_path):
    """Our model and its exported twin."""
    config = dataclasses.replace(tiny, schedule=request.param)
    model = fresh_model(config, seed=3).eval()
    export(model, tmp_path / "hf")
    return model, AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()


@pytest.fixture
def twin(tiny, tmp_path):
    model = fresh_model(dataclasses.replace(tiny, schedule="mixer_loop(3)"), seed=3).eval()
    export(model, tmp_path / "hf")
    return AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()


def tokens_of(vocab_size, batch=2, length=13):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, vocab_size, (batch, length), generator=generator)


def test_logits_are_ours(both):
    ours, theirs = both
    tokens = tokens_of(ours.config.vocab_size)
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours(tokens), rtol=0, atol=LOGITS_AGREE)


@pytest.mark.parametrize("unit", ["mixer", "block", "stack"])
def test_logits_with_a_learned_residual_are_ours(tiny, tmp_path, unit):
    schedule = "mixer_loop(2)" if unit == "mixer" else "full_loop(2)"
    config = dataclasses.replace(tiny, schedule=schedule, pass_residual=unit)
    ours = fresh_model(config, seed=3).eval()
    assert ours.pass_residual is not None
    torch.nn.init.normal_(ours.pass_residual.weight, std=0.3)
    export(ours, tmp_path / "hf")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    tokens = tokens_of(tiny.vocab_size)
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours(tokens), rtol=0, atol=LOGITS_AGREE)


def test_greedy_with_a_cache_is_greedy_without(both):
    _, model = both
    prompts = tokens_of(model.config.vocab_size, batch=3, length=7)
    mask = torch.ones_like(prompts)
    for row, padding in enumerate((0, 2, 5)):  # prompts of unequal length, filled from the left
        prompts[row, :padding], mask[row, :padding] = 0, 0
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    cached, plain = (
        model.generate(prompts, attention_mask=mask, use_cache=use_cache, **options)
        for use_cache in (True, False)
    )
    assert torch.equal(cached, plain)
    alone = model.generate(prompts[2:, 5:], **options)
    assert torch.equal(alone[:, 2:], cached[2:, 7:])


def test_beams_are_reordered_with_their_states(twin):
    prompts = tokens_of(twin.config.vocab_size, batch=2, length=5)
    options = {"max_new_tokens": 6, "num_beams": 3, "pad_token_id": 0, "eos_token_id": None}
    cached, plain = (
        twin.generate(prompts, use_cache=use_cache, do_sample=False, **options)
        for use_cache in (True, False)
    )
    assert torch.equal(cached, plain)


def test_the_cache_does_not_grow(both):
    _, model = both

    def size(length):
        cache = model(tokens_of(model.config.vocab_size, 1, length), use_cache=True).past_key_values
        layers = cache.layers
        states = [one.recurrent_states[0].nbytes + one.conv_states[0].nbytes for one in layers]
        return len(states), sum(states)

    with torch.no_grad():
        sizes = {size(length) for length in (1, 2, 9, 40)}
    assert len(sizes) == 1
    mixers = sum(one.sublayer == "mixer" for one in model.model.schedule)
    assert sizes.pop()[0] == mixers


def test_labels_give_the_next_token_loss(twin):
    tokens = tokens_of(twin.config.vocab_size)
    found = twin(tokens, labels=tokens)
    expected = torch.nn.functional.cross_entropy(
        found.logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    )
    torch.testing.assert_close(found.loss, expected)


def test_only_the_logits_that_are_asked_for(twin):
    tokens = tokens_of(twin.config.vocab_size)
    with torch.no_grad():
        whole = twin(tokens).logits
        assert torch.equal(twin(tokens, logits_to_keep=1).logits, whole[:, -1:])
        some = torch.tensor([3, 5])
        assert torch.equal(twin(tokens, logits_to_keep=some).logits, whole[:, some])


def test_hidden_states_are_before_each_occurrence_and_last_normed(twin):
    tokens = tokens_of(twin.config.vocab_size)
    states = twin(tokens, output_hidden_states=True).hidden_states
    assert len(states) == len(twin.model.schedule) + 1
    assert torch.equal(states[0], twin.model.embeddings(tokens))
    with torch.no_grad():
        torch.testing.assert_close(twin.lm_head(states[-1]), twin(tokens).logits)


def test_hooks_on_a_mixer_see_every_pass(twin):
    seen = []
    twin.model.layers[1].mixer.register_forward_hook(lambda *args: seen.append(args[2][0]))
    twin(tokens_of(twin.config.vocab_size))
    assert len(seen) == 3


def test_checkpointing_changes_no_gradient(twin):
    tokens = tokens_of(twin.config.vocab_size)
    twin.train()

    def gradients():
        twin.zero_grad()
        twin(tokens, labels=tokens, use_cache=False).loss.backward()
        return {name: p.grad.clone() for name, p in twin.named_parameters()}

    plain = gradients()
    twin.gradient_checkpointing_enable()
    for name, gradient in gradients().items():
        assert torch.equal(gradient, plain[name]), name


def test_bfloat16_weights_run(tmp_path, tiny):
    model = fresh_model(tiny, seed=3).eval()
    export(model, tmp_path / "hf")
    narrow = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.bfloat16)
    assert narrow.dtype == torch.bfloat16
    tokens = tokens_of(tiny.vocab_size)
    with torch.no_grad():
        found = narrow(tokens).logits
        torch.testing.assert_close(found.float(), model(tokens), rtol=0, atol=0.05)


@pytest.mark.parametrize(
    "wrong", [{"position_idz": 1}, {"attention_mask": torch.ones(1, 2)}, {"input_ids": None}]
)
def test_what_is_not_understood_is_an_error(twin, wrong):
    tokens = tokens_of(twin.config.vocab_size)
    with pytest.raises((TypeError, ValueError)):
        twin(**({"input_ids": tokens} | wrong))


def test_an_unknown_key_of_a_config_is_an_error(tmp_path, twin):
    with pytest.raises(ValueError, match="unknown key num_pases"):
        mixerloop.interop.hf.MixerLoopConfig(num_pases=3)  # pyright: ignore
    assert type(twin.config).model_type == "mixerloop"


def test_keys_that_must_have_one_value_may_be_there_with_it():
    make: Any = mixerloop.interop.hf.MixerLoopConfig
    assert make(expand_v=1.0, use_gate=True, hidden_act="swish", num_v_heads=4).num_heads == 4
    with pytest.raises(ValueError, match="expand_v = 2"):
        make(expand_v=2)
    with pytest.raises(ValueError, match="num_v_heads"):
        make(num_v_heads=5)


def test_a_learned_residual_that_the_config_does_not_know_is_an_error(tiny, tmp_path):
    config = dataclasses.replace(tiny, schedule="mixer_loop(2)", pass_residual="mixer")
    export(fresh_model(config, seed=3), tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    given = json.loads(path.read_text())
    del given["pass_residual"]
    path.write_text(json.dumps(given))
    with pytest.raises(ValueError, match=r"model\.residual_weight; its config needs pass_residual"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "hf")


def test_the_trainer_trains_it(twin, tmp_path):
    tokens = tokens_of(twin.config.vocab_size, batch=16)
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=30,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    with torch.no_grad():
        before = float(twin(tokens, labels=tokens).loss)
    Trainer(model=twin, args=arguments, train_dataset=rows).train()  # pyright: ignore
    twin.eval()
    with torch.no_grad():
        assert float(twin(tokens, labels=tokens).loss) < before - 0.5


def test_saved_by_transformers_it_loads_here_and_there(twin, tmp_path):
    from mixerloop.interop.folders import read_exported

    twin.save_pretrained(tmp_path / "again")
    model, _ = read_exported(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    tokens = tokens_of(twin.config.vocab_size)
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, twin(tokens).logits)
        torch.testing.assert_close(model(tokens), twin(tokens).logits, rtol=0, atol=LOGITS_AGREE)
