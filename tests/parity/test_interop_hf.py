"""The exported model in `transformers`: the same logits, and all that others expect of a model."""

# ruff: noqa: E402  # where transformers is missing the file ends before it imports it
import copy
import dataclasses
import json
import subprocess
import sys
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import needs

needs.package("transformers").or_skip()

from transformers import AutoModelForCausalLM, DynamicCache, Trainer, TrainingArguments

import mixerloop.interop.hf
from mixerloop.interop.folders import export, read_exported
from mixerloop.interop.hf import GatedDeltaNetForCausalLM
from mixerloop.model.initialization import fresh_model
from mixerloop.ops.precision import compute_in
from mixerloop.schedule import LOOPS

LOGITS_AGREE = 1e-6
FLOAT64_AGREES = 1e-12
LIVELY = 4.0
BFLOAT16_AGREES = 2  # times what our own model loses, whose weights stay float32
CACHE_AGREES = 1e-5  # token by token and all at once are other sums


def lively(config, *, seed=3):
    """Fresh weights, larger: every part of the model shows in its logits, and so would a slip."""
    model = fresh_model(config, seed=seed).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and name != "pass_residual.weight":
                parameter.mul_(LIVELY)
    return model


def class_of(folder):
    """AutoModel's choice; without a loop ours, for where flash-linear-attention is imported too."""
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    return GatedDeltaNetForCausalLM if kind == "gated_deltanet" else AutoModelForCausalLM


def loaded(folder):
    return class_of(folder).from_pretrained(folder).eval()


def exported(place, config):
    """Our model and its exported twin in `transformers`."""
    ours = lively(config)
    if "pass_residual.weight" in dict(ours.named_parameters()):
        torch.nn.init.normal_(ours.get_parameter("pass_residual.weight"), std=0.3)
    export(ours, place / "hf")
    return ours, loaded(place / "hf")


@pytest.fixture(params=LOOPS)
def both(request, tiny, tmp_path):
    return exported(tmp_path, dataclasses.replace(tiny, schedule=request.param))


@pytest.fixture(params=["mixer_loop(3)", "full_loop(2)"])
def looped(request, tiny, tmp_path):
    """A twin whose cache has an entry for each pass."""
    return exported(tmp_path, dataclasses.replace(tiny, schedule=request.param))[1]


@pytest.fixture
def twin(tiny, tmp_path):
    return exported(tmp_path, dataclasses.replace(tiny, schedule="mixer_loop(3)"))[1]


def tokens_of(vocab_size, batch=2, length=13):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, vocab_size, (batch, length), generator=generator)


def test_without_a_loop_auto_model_is_ours_where_no_other_is_registered(tiny, tmp_path):
    export(fresh_model(dataclasses.replace(tiny, schedule="no_loop"), seed=3), tmp_path / "hf")
    program = (
        "import mixerloop.interop.hf, transformers; "
        f"model = transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path / 'hf')!r}); "
        "print(type(model).__module__, type(model).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    expected = ["mixerloop.interop.hf.modeling", "GatedDeltaNetForCausalLM"]
    assert done.stdout.split() == expected, done.stderr


def assert_same_in_float64(ours, theirs):
    """Where rounding leaves no room for a slip."""
    tokens = tokens_of(ours.config.vocab_size)
    with torch.no_grad():
        found, wanted = theirs.double()(tokens).logits, ours.double()(tokens)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, wanted, rtol=0, atol=FLOAT64_AGREES)


def test_logits_are_ours(both):
    assert_same_in_float64(*both)


@pytest.mark.parametrize(
    "keys",
    [
        {"schedule": "mixer_loop(2)", "pass_residual": "mixer"},
        {"schedule": "ffn_loop(2)", "pass_residual": "ffn"},
        {"schedule": "block_loop(2)", "pass_residual": "block"},
        {"schedule": "full_loop(2)", "pass_residual": "stack"},
        {"schedule": "mixer_loop(2)", "d_value": 12, "negative_eigenvalues": True},
    ],
    ids=lambda keys: "-".join(map(str, keys.values())),
)
def test_logits_of_other_options_are_ours(tiny, tmp_path, keys):
    assert_same_in_float64(*exported(tmp_path, tiny.changed(**keys)))


def written(model, prompts, *, use_cache, **options):
    """Tokens and the logits they were chosen by."""
    found = model.generate(
        prompts,
        use_cache=use_cache,
        output_logits=True,
        return_dict_in_generate=True,
        **{"do_sample": False, "pad_token_id": 0, "eos_token_id": None, **options},
    )
    return found.sequences, torch.stack(found.logits, dim=1)


def test_greedy_with_a_cache_is_greedy_without(both):
    _, model = both
    prompts = tokens_of(model.config.vocab_size, batch=3, length=7)
    mask = torch.ones_like(prompts)
    for row, padding in enumerate((0, 2, 5)):  # prompts of unequal length, filled from the left
        prompts[row, :padding], mask[row, :padding] = 0, 0
    options = {"max_new_tokens": 9, "attention_mask": mask}
    cached, cached_logits = written(model, prompts, use_cache=True, **options)
    plain, plain_logits = written(model, prompts, use_cache=False, **options)
    assert torch.equal(cached, plain)
    torch.testing.assert_close(cached_logits, plain_logits, rtol=0, atol=CACHE_AGREES)
    _, alone = written(model, prompts[2:, 5:], use_cache=True, max_new_tokens=9)
    torch.testing.assert_close(alone, cached_logits[2:], rtol=0, atol=CACHE_AGREES)


def test_what_was_before_shows_in_the_logits(both):
    """Or the tests of the cache would hold without one."""
    _, model = both
    tokens = tokens_of(model.config.vocab_size, batch=1, length=8)
    other = tokens.clone()
    other[:, 2] = (tokens[:, 2] + 1) % model.config.vocab_size
    with torch.no_grad():
        moved = model(tokens).logits[:, -1] - model(other).logits[:, -1]
    assert moved.abs().max() > 100 * CACHE_AGREES


def test_beams_are_reordered_with_their_states(looped):
    model = looped
    prompts = tokens_of(model.config.vocab_size, batch=4, length=5)
    options = {"max_new_tokens": 10, "num_beams": 5, "output_scores": True}
    options |= {"return_dict_in_generate": True, "pad_token_id": 0, "eos_token_id": None}
    cached, plain = (
        model.generate(prompts, use_cache=use_cache, do_sample=False, **options)
        for use_cache in (True, False)
    )
    steps = cached.beam_indices[:, :10]
    assert max(row.unique().numel() for row in steps) > 2  # they were reordered, after the first
    assert torch.equal(cached.sequences, plain.sequences)
    torch.testing.assert_close(
        cached.sequences_scores, plain.sequences_scores, rtol=0, atol=CACHE_AGREES
    )


def test_hidden_states_of_generate_arrive_and_the_rest_is_refused(twin):
    prompts = tokens_of(twin.config.vocab_size, batch=1, length=4)
    options = {"max_new_tokens": 2, "pad_token_id": 0, "return_dict_in_generate": True}
    found = twin.generate(prompts, output_hidden_states=True, **options)
    assert len(found.hidden_states[0]) == len(twin.model.schedule) + 1
    with pytest.raises(ValueError, match="output_attentions: means nothing"):
        twin.generate(prompts, output_attentions=True, **options)


def test_padding_behind_a_text_gives_its_logits_and_no_cache(twin):
    tokens = tokens_of(twin.config.vocab_size, batch=2, length=6)
    mask = torch.ones_like(tokens)
    mask[1, 4:] = 0
    with torch.no_grad():
        found = twin(tokens, attention_mask=mask)
        alone = twin(tokens[1:, :4]).logits
    torch.testing.assert_close(found.logits[1:, :4], alone, rtol=0, atol=LOGITS_AGREE)
    assert found.past_key_values is None
    with pytest.raises(ValueError, match="padding goes before a text"):
        twin(tokens, attention_mask=mask, use_cache=True)


def test_without_an_end_token_nothing_ends_a_text(twin):
    assert twin.config.eos_token_id is None
    prompts = torch.full((1, 3), 2)
    assert twin.generate(prompts, max_new_tokens=7, pad_token_id=0).shape == (1, 10)


def test_the_cache_does_not_grow(looped):
    model = looped

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
    output = twin(tokens, labels=tokens)
    expected = F.cross_entropy(output.logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(output.loss, expected)


def test_only_the_logits_that_are_asked_for(twin):
    tokens = tokens_of(twin.config.vocab_size)
    some = torch.tensor([3, 5])
    with torch.no_grad():
        hidden = twin.model(tokens).last_hidden_state
        for asked, rows in ((1, slice(-1, None)), (some, some)):
            found = twin(tokens, logits_to_keep=asked).logits
            assert torch.equal(found, twin.lm_head(hidden[:, rows]))


def test_hidden_states_are_before_each_occurrence_and_last_normed(twin):
    tokens = tokens_of(twin.config.vocab_size)
    states = twin(tokens, output_hidden_states=True).hidden_states
    assert len(states) == len(twin.model.schedule) + 1
    assert torch.equal(states[0], twin.model.embeddings(tokens))
    with torch.no_grad():
        torch.testing.assert_close(twin.lm_head(states[-1]), twin(tokens).logits)


@pytest.mark.parametrize(
    ("loop", "mixers", "ffns"),
    [("mixer_loop(3)", 3, 1), ("full_loop(3)", 3, 3), ("ffn_loop(3)", 1, 3)],
)
def test_a_script_that_hooks_mixers_as_the_authors_do_runs(tiny, tmp_path, loop, mixers, ffns):
    """Record what enters and leaves each mixer, then let a mixer run again on a part of it."""
    _, model = exported(tmp_path, dataclasses.replace(tiny, schedule=loop))
    assert model.config.loop_count == 3
    ffn_calls = Counter()
    calls: dict[int, list[Any]] = {number: [] for number in range(tiny.num_layers)}

    def keep(number):
        def hook(module, args, kwargs, output):
            x = args[0] if args else kwargs["hidden_states"]
            calls[number].append((x, output[0]))

        return hook

    handles = [
        layer.ffn.register_forward_hook(lambda module, args, output: ffn_calls.update([module]))
        for layer in model.model.layers
    ]
    handles += [
        layer.mixer.register_forward_hook(keep(number), with_kwargs=True)
        for number, layer in enumerate(model.model.layers)
    ]
    with torch.no_grad():
        model(tokens_of(tiny.vocab_size), attention_mask=None, use_cache=False)
    for handle in handles:
        handle.remove()
    assert {len(found) for found in calls.values()} == {mixers}
    assert set(ffn_calls.values()) == {ffns}
    for number, layer in enumerate(model.model.layers):
        for x, update in calls[number]:
            with torch.no_grad():
                again = layer.mixer(hidden_states=x, attention_mask=None)[0]
                alone = layer.mixer(x[:, -1:], attention_mask=None)[0]  # without its context
            assert torch.equal(again, update)
            assert not torch.allclose(alone, update[:, -1:], atol=1e-3)


def test_checkpointing_changes_no_gradient(twin):
    tokens = tokens_of(twin.config.vocab_size)
    twin.train()

    def gradients():
        twin.zero_grad()
        twin(tokens, labels=tokens, use_cache=False).loss.backward()
        return {name: p.grad.clone() for name, p in twin.named_parameters()}

    calls = []
    twin.model.layers[0].mixer.register_forward_pre_hook(lambda *args: calls.append(1))
    plain = gradients()
    assert len(calls) == 3
    twin.gradient_checkpointing_enable()
    for name, gradient in gradients().items():
        assert torch.equal(gradient, plain[name]), name
    assert len(calls) == 3 + 2 * 3  # each occurrence once more in the backward


@needs.package("accelerate").mark
def test_layers_may_wait_on_the_disk_until_they_are_called(looped, tmp_path):
    model = looped
    places = {
        **{"model.embeddings": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"},
        **{"model.layers.2": "disk", "model.norm": "cpu", "lm_head": "cpu"},
    }
    placed: Any = (
        class_of(tmp_path / "hf")
        .from_pretrained(tmp_path / "hf", device_map=places, offload_folder=tmp_path / "offloaded")
        .eval()
    )
    assert placed.model.layers[2].mixer.A_log.is_meta
    assert placed.model.layers[2].mixer.q_conv1d.weight.is_meta
    prompts = tokens_of(model.config.vocab_size)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with torch.no_grad():
        assert torch.equal(placed(prompts).logits, model(prompts).logits)
    assert torch.equal(placed.generate(prompts, **options), model.generate(prompts, **options))


def test_what_enters_a_layer_is_moved_to_its_device(tiny, tmp_path):
    """No second device is here, so it is `meta`: what is left behind does not add or multiply."""
    hooks = needs.module("accelerate.hooks")
    config = tiny.changed(schedule="mixer_loop(2)", pass_residual="mixer")
    export(fresh_model(config, seed=3), tmp_path / "hf")
    model = loaded(tmp_path / "hf").model
    names = ("embeddings", "layers.0", "layers.1", "layers.2", "norm")
    places = {name: "meta" if name > "layers.0" else "cpu" for name in names}
    hooks.attach_align_device_hook_on_blocks(
        model, execution_device=places, offload=dict.fromkeys(places, False)
    )
    hooks.remove_hook_from_module(model)  # that of the root, which would bring the end back
    tokens = tokens_of(tiny.vocab_size)
    mask = torch.ones_like(tokens)
    mask[0, 0] = 0
    with torch.no_grad():
        found = model(tokens, attention_mask=mask, use_cache=True)
        after = model(tokens[:, :1], past_key_values=found.past_key_values, use_cache=True)
    assert after.last_hidden_state.is_meta
    assert [one.recurrent_states[0].is_meta for one in found.past_key_values.layers] == [
        *(False, False, True, True, True, True),
    ]


def test_bfloat16_weights_run(tmp_path, tiny):
    model = lively(tiny)
    export(model, tmp_path / "hf")
    narrow = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.bfloat16)
    assert narrow.dtype == torch.bfloat16
    mixer = narrow.model.layers[0].mixer
    assert {mixer.A_log.dtype, mixer.dt_bias.dtype} == {torch.float32}
    tokens = tokens_of(tiny.vocab_size)
    with torch.no_grad():
        found, wanted = narrow(tokens).logits.float(), model(tokens)
        with compute_in("bfloat16", "cpu"):
            ours = model(tokens).float()
    assert (found - wanted).std() < BFLOAT16_AGREES * (ours - wanted).std()


@pytest.mark.parametrize(
    "wrong", [{"position_idz": 1}, {"attention_mask": torch.ones(1, 2)}, {"input_ids": None}]
)
def test_what_is_not_understood_is_an_error(twin, wrong):
    tokens = tokens_of(twin.config.vocab_size)
    with pytest.raises((TypeError, ValueError)):
        twin(**({"input_ids": tokens} | wrong))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"input_ids": [[1, 2]]}, "input_ids must be a tensor, got list"),
        ({"input_ids": torch.tensor([1, 2])}, r"must be \[batch, seq\], got \(2,\)"),
        ({"input_ids": torch.tensor([[1, 2]]).to_sparse()}, "input_ids must be a dense tensor"),
        ({"attention_mask": "left"}, "attention_mask must be a tensor, got str"),
        ({"past_key_values": "cache"}, "past_key_values: not a cache that this model made"),
        ({"past_key_values": DynamicCache()}, "past_key_values: not a cache that this model made"),
        ({"labels": torch.tensor([[1]])}, r"labels must be \(\d, \d+\), got \(1, 1\)"),
    ],
)
@pytest.mark.usefixtures("shapes_unchecked")
def test_a_wrong_argument_is_named(twin, wrong, message):
    tokens = tokens_of(twin.config.vocab_size)
    with pytest.raises((TypeError, ValueError), match=message):
        twin(**({"input_ids": tokens} | wrong))


def test_keys_of_a_config_are_checked(twin):
    make: Any = partial(mixerloop.interop.hf.MixerLoopConfig, loop_count=2)
    assert make(expand_v=1.0, use_gate=True, hidden_act="swish", num_v_heads=4).num_heads == 4
    for wrong, message in (
        ({"loop_cuont": 3}, "unknown key loop_cuont; did you mean loop_count"),
        ({"use_gate": False}, "use_gate = False"),
        ({"num_v_heads": 5}, "num_v_heads"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**wrong)
    assert type(twin.config).model_type == "mixerloop"


def changed_config(folder, *without, **keys):
    path = folder / "config.json"
    given = {key: x for key, x in json.loads(path.read_text()).items() if key not in without}
    path.write_text(json.dumps(given | keys))


def test_a_learned_residual_that_the_config_does_not_know_is_an_error(tiny, tmp_path):
    exported(tmp_path, tiny.changed(schedule="mixer_loop(2)", pass_residual="mixer"))
    changed_config(tmp_path / "hf", "use_residual")
    with pytest.raises(
        ValueError, match=r"model\.residual_weight; its config needs use_residual or pass_residual"
    ):
        loaded(tmp_path / "hf")


def test_accumulated_batches_weigh_their_tokens_alike(twin, tmp_path):
    """The Trainer trains it; a micro-batch with few labels counts for as much less."""
    tokens = tokens_of(twin.config.vocab_size, batch=4)
    labels = tokens.clone()
    labels[:2, 3:] = -100
    rows = [
        {"input_ids": row, "labels": of_row} for row, of_row in zip(tokens, labels, strict=True)
    ]

    def after_a_step(micro_batch):
        model = copy.deepcopy(twin)
        arguments = TrainingArguments(
            output_dir=str(tmp_path / "out"),
            max_steps=1,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=4 // micro_batch,
            optim="sgd",
            learning_rate=1.0,
            max_grad_norm=0.0,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        Trainer(model=model, args=arguments, train_dataset=rows).train()  # pyright: ignore
        return model.model.layers[0].mixer.q_proj.weight.detach()

    whole = after_a_step(4)
    assert (whole - twin.model.layers[0].mixer.q_proj.weight).abs().max() > 1e-4
    torch.testing.assert_close(after_a_step(1), whole, rtol=0, atol=1e-6)


def test_a_pickle_is_not_looked_for(twin, tmp_path):
    twin.save_pretrained(tmp_path / "pickled")
    (tmp_path / "pickled" / "model.safetensors").unlink()
    torch.save(twin.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "pickled")
    with pytest.raises(ValueError, match="a pickle can run code"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "pickled", use_safetensors=False)


def test_the_number_of_passes_is_said_once_and_never_guessed(twin, tmp_path):
    with pytest.raises((TypeError, ValueError), match="schedule"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "hf", schedule="3x(A2 F)")
    changed_config(tmp_path / "hf", "loop_count")
    with pytest.raises(ValueError, match="loop_count is missing"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "hf")


def test_saved_by_transformers_it_loads_here_and_there(twin, tmp_path):
    twin.save_pretrained(tmp_path / "again")
    model, _ = read_exported(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    tokens = tokens_of(twin.config.vocab_size)
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, twin(tokens).logits)
    assert_same_in_float64(model, twin)


def test_our_first_exports_load(twin, tmp_path):
    first = {"schedule": "3x(A3 F)", "pass_residual": "none", "num_passes": None}
    changed_config(tmp_path / "hf", "loop_count", "use_residual", **first)
    tokens = tokens_of(twin.config.vocab_size)
    with torch.no_grad():
        assert torch.equal(loaded(tmp_path / "hf")(tokens).logits, twin(tokens).logits)
