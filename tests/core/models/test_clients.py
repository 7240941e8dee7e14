"""Expectations of other libraries of a causal language model: base model, outputs, padding, and transformers' Trainer."""

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DataCollatorForLanguageModeling,
    DynamicCache,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from transformers.utils.generic import find_labels

from contextlm_models import FAMILIES, LONGEST, VOCABULARY, backbone, contextlm, draw, stock_model
from contextwise import ContextLMForCausalLM
from contextwise.base.errors import ConfigError
from contextwise.models.masks import packed_documents
from contextwise.models.variant.modeling import VariantForCausalLM
from contextwise_papers.cue import CueConfig, CueForCausalLM, LSTMConfig, LSTMForCausalLM
from contextwise_papers.objectives import MultiTokenConfig, MultiTokenForCausalLM
from small import as_on_an_accelerator


def multitoken(family="gpt2", seed=0, **options):
    torch.manual_seed(seed)
    return MultiTokenForCausalLM(MultiTokenConfig(backbone(family), future_tokens=3, **options)).eval()


def over_context():
    return MultiTokenForCausalLM.from_backbone(contextlm("llama", chunk_size=3), future_tokens=2).eval()


def cue():
    torch.manual_seed(0)
    return CueForCausalLM(CueConfig(backbone("gpt2"), decoder=None)).eval()


def lstm():
    torch.manual_seed(0)
    return LSTMForCausalLM(LSTMConfig(vocab_size=61, hidden_size=16, num_hidden_layers=2)).eval()


COMPOSED = {
    "contextlm": lambda: contextlm("gpt2", chunk_size=3),
    "multitoken": multitoken,
    "multitoken linear": lambda: multitoken(head="linear"),
    "multitoken over contextlm": over_context,
}
ALL = COMPOSED | {"cue": cue, "lstm": lstm}
EVERY = pytest.mark.parametrize("kind", ALL)


@EVERY
def test_the_base_model_is_the_model_without_its_head(kind):
    model = ALL[kind]()
    tokens = draw(2, 11)
    with torch.no_grad():
        base = model.base_model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
        expected = model(tokens, use_cache=False).logits
    assert model.base_model is not model and base.past_key_values is None
    torch.testing.assert_close(model.get_output_embeddings()(base.last_hidden_state), expected)
    # Freezing the base model, as guides show it, leaves the head alone.
    for parameter in model.base_model.parameters():
        parameter.requires_grad_(False)
    head = model.get_output_embeddings().weight
    kept = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    tied = any(head is parameter for parameter in model.base_model.parameters())
    assert kept == ({name for name, each in model.named_parameters() if each is head} if not tied else set())


@pytest.mark.parametrize("kind", [ContextLMForCausalLM, MultiTokenForCausalLM, CueForCausalLM, VariantForCausalLM])
def test_the_trainer_finds_the_labels(kind):
    assert find_labels(kind) == ["labels"]


QUIET = {"report_to": [], "use_cpu": True, "disable_tqdm": True}


def collated(model, folder, count, **options):
    """A stock Trainer of rows of different lengths, each a run of consecutive words, which a collator pads on the right."""
    words = {f"w{i}": i for i in range(60)} | {"[PAD]": 60}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "w0")), pad_token="[PAD]")
    rows = [{"input_ids": [(start + i) % 60 for i in range(6 + start % 9)]} for start in range(count)]
    arguments = TrainingArguments(output_dir=str(folder), **QUIET, **options)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    return Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows, data_collator=collator)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["contextlm", "multitoken"])
def test_a_user_trains_with_the_stock_trainer(kind, tmp_path):
    model = COMPOSED[kind]()
    options = {"max_steps": 60, "per_device_train_batch_size": 16, "learning_rate": 1e-2, "logging_steps": 10}
    trainer = collated(model, tmp_path, 64, save_strategy="no", **options)
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses[-1] < 0.6 * losses[0]
    text = model.eval().generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False, pad_token_id=60)
    assert text[0].tolist() == [5, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("kind", COMPOSED)
def test_the_stock_trainer_evaluates_and_keeps_the_best_model(kind, tmp_path):
    arguments = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 8, "load_best_model_at_end": True}
    arguments |= {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    # The rate is far too high: the loss jumps.
    trainer = collated(COMPOSED[kind](), tmp_path, 8, max_steps=3, learning_rate=5.0, **arguments)
    trainer.train()
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(losses) == 3 and trainer.state.best_metric == min(losses)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(min(losses), rel=1e-5)
    assert trainer.predict(trainer.eval_dataset).predictions.shape[:2] == (8, 13)  # the logits, not the losses of heads


@FAMILIES
@pytest.mark.parametrize("lengths", [[9, 4, 1], [9, 8, 9]])
@pytest.mark.parametrize("reads", [True, False], ids=["CPU", "accelerator"])
def test_rows_padded_on_the_right_are_evaluated_and_continued(family, lengths, reads, monkeypatch):
    """With a cache, which is on by default: the logits of each row are those of the row alone, then of one token more."""
    if not reads:
        as_on_an_accelerator(monkeypatch)
    model = contextlm(family, chunk_size=3)
    tokens, later = draw(3, 9), draw(3, 5, seed=1)
    mask = (torch.arange(9) < torch.tensor(lengths)[:, None]).long()
    with torch.no_grad():
        out = model(tokens, attention_mask=mask)
        logits = [out.logits]
        for step in range(5):
            mask = torch.cat([mask, torch.ones(3, 1, dtype=torch.long)], dim=1)
            out = model(later[:, step : step + 1], attention_mask=mask, past_key_values=out.past_key_values)
            logits.append(out.logits)
        for row, length in enumerate(lengths):
            whole = model(torch.cat([tokens[row, :length], later[row]])[None], use_cache=False).logits[0]
            ours = torch.cat([logits[0][row, :length], *(each[row] for each in logits[1:])])
            torch.testing.assert_close(ours, whole, atol=1e-4, rtol=1e-4)


@EVERY
def test_outputs_are_in_the_order_of_transformers(kind):
    model, tokens = ALL[kind](), draw(2, 7)
    with torch.no_grad():
        out = model(tokens)
        assert out[0] is out.logits
        scored = model(tokens, labels=tokens)
        assert scored[0] is scored.loss and scored[1] is scored.logits
        values = model(tokens, labels=tokens, return_dict=False)
    assert isinstance(values, tuple)
    torch.testing.assert_close(values[1], out.logits)


@FAMILIES
def test_hidden_states_and_attentions_are_those_of_the_backbone_where_nothing_is_added(family):
    stock, tokens = stock_model(family), draw(2, 11)
    stock.set_attn_implementation("eager")
    wanted = {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        expected = stock(tokens, **wanted)
        # The stock model has recorded its outputs before: each must still be recorded once.
        model = ContextLMForCausalLM.from_backbone(stock, chunk_size=3)
        model.set_attn_implementation("eager")
        out = model(tokens, **wanted)
    for name in ("hidden_states", "attentions"):
        assert len(out[name]) == len(expected[name])
        for ours, theirs in zip(out[name], expected[name], strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        values = model(tokens, return_dict=False, use_cache=False, output_hidden_states=True)
    torch.testing.assert_close(values[1][-1], out.hidden_states[-1])


@pytest.mark.parametrize("kind", COMPOSED)
def test_the_last_hidden_state_gives_the_logits(kind):
    model, tokens = COMPOSED[kind](), draw(2, 7)
    model.config.output_hidden_states = True
    with torch.no_grad():
        out = model(tokens, labels=tokens)
    assert len(out.hidden_states) == len(model.blocks) + 1
    torch.testing.assert_close(model.get_output_embeddings()(out.hidden_states[-1]), out.logits)


def test_a_model_without_such_outputs_says_so():
    for model in (cue(), lstm()):
        with pytest.raises(ValueError, match="returns no hidden_states; leave out output_hidden_states"):
            model(draw(1, 4), output_hidden_states=True)


@pytest.mark.parametrize("kind", COMPOSED)
def test_the_configuration_is_read_and_set_like_a_stock_one(kind):
    model = COMPOSED[kind]()
    tokens = draw(1, 5)
    assert model(tokens).past_key_values is not None and model.train()(tokens).past_key_values is None
    model.eval().config.use_cache = False
    assert model(tokens).past_key_values is None
    assert model(tokens, past_key_values=DynamicCache()).past_key_values is None
    model.config.max_position_embeddings = 2 * LONGEST
    assert model.config.max_position_embeddings == 2 * LONGEST
    again = type(model.config).from_dict(model.config.to_dict())
    assert (again.use_cache, again.max_position_embeddings) == (False, 2 * LONGEST)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_an_early_exit_drafts_for_the_whole_model(family):
    """Assisted decoding with the model's own first block gives the tokens of greedy decoding, and leaves the model whole."""
    model, prompt = contextlm(family, chunk_size=3), draw(1, 6)
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(prompt, **options)
    runs: list[int] = []
    last = model.blocks[-1].register_forward_hook(lambda *_: runs.append(1))
    early = model.generate(prompt, assistant_early_exit=1, **options)
    last.remove()
    assert early.tolist() == expected.tolist() and model.config.num_hidden_layers == 3
    assert model.generate(prompt, **options).tolist() == expected.tolist()
    assert isinstance(model.body, nn.Module) and len(runs) >= 2


def test_fewer_blocks_are_run_where_the_configuration_says_so():
    model, tokens = contextlm("gpt2", chunk_size=3), draw(1, 6)
    with torch.no_grad():
        first = model(tokens, output_hidden_states=True).hidden_states[1]
        model.config.num_hidden_layers = 1
        states = model(tokens, output_hidden_states=True).hidden_states
    assert len(states) == 2
    torch.testing.assert_close(states[-1], model.backbone.ln_f(first))


@EVERY
def test_a_configuration_names_no_remote_code(kind, tmp_path):
    """TRL reads ``auto_map`` of a saved model that is not one of transformers' own; the file does not have it."""
    model = ALL[kind]()
    model.save_pretrained(tmp_path)
    assert "auto_map" not in (tmp_path / "config.json").read_text() and "auto_map" not in model.config.to_dict()
    config = AutoConfig.from_pretrained(tmp_path)
    assert not config.auto_map and "AutoModelForCausalLM" not in config.auto_map
    assert config.to_dict() | {"_name_or_path": ""} == AutoConfig.from_pretrained(tmp_path).to_dict() | {
        "_name_or_path": ""
    }
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path)) is type(model)


@EVERY
@pytest.mark.parametrize("size", [VOCABULARY + 7, VOCABULARY - 5], ids=["larger", "smaller"])
def test_a_resized_vocabulary_is_saved_and_loaded(kind, size, tmp_path):
    model, kept = ALL[kind](), min(size, VOCABULARY)
    tokens = draw(2, 9).clamp(max=kept - 1)
    with torch.no_grad():
        before = model(tokens, use_cache=False).logits[..., :kept]
        model.resize_token_embeddings(size)
        logits = model(tokens, use_cache=False).logits
    assert model.config.vocab_size == size == logits.shape[-1] and torch.equal(logits[..., :kept], before)
    assert torch.isfinite(model(tokens, labels=tokens).loss)
    model.save_pretrained(tmp_path)
    loaded, found = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(found.values())
    with torch.no_grad():
        assert torch.equal(loaded.eval()(tokens, use_cache=False).logits, logits)


def test_a_resized_sentence_encoder_stays_frozen_and_positions_reach_it():
    model = cue()
    model.resize_token_embeddings(VOCABULARY + 3)
    assert not any(parameter.requires_grad for parameter in model.sentence_encoder.parameters())
    assert model.sentence_encoder(draw(1, 4)).logits.shape[-1] == VOCABULARY + 3
    model.config.max_position_embeddings = 7
    assert model.config.sentence_encoder.max_position_embeddings == 7 == model.config.decoder.max_positions


PACKED = {kind: make for kind, make in ALL.items() if kind != "lstm"}  # an LSTM refuses packed documents


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("reads", [True, False], ids=["CPU", "accelerator"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_packed_documents_stay_apart_beside_a_mask(kind, reads, attention, padding, monkeypatch):
    """transformers reads restarting positions only where no mask is given; the promise here holds with one, too."""
    if not reads:
        as_on_an_accelerator(monkeypatch)
    model = PACKED[kind]()
    model.set_attn_implementation(attention)
    parts = draw(2, 7), draw(2, 10, seed=1)
    tokens, mask = torch.cat(parts, 1), torch.ones(2, 17, dtype=torch.long)
    positions = torch.cat([torch.arange(7), torch.arange(10)])[None]
    margin = {None: (0, 0), "left": (3, 0), "right": (0, 3)}[padding]
    tokens, mask, positions = (nn.functional.pad(each, margin) for each in (tokens, mask, positions))
    inputs = {"attention_mask": mask, "position_ids": positions, "use_cache": False}
    if kind == "cue" and padding:
        with pytest.raises(ConfigError, match="one sentence into each row"):
            model(tokens, **inputs)
        return
    with torch.no_grad():
        logits = model(tokens, **inputs).logits[:, margin[0] : margin[0] + 17]
        for part, ours in zip(parts, logits.split([7, 10], 1), strict=True):
            torch.testing.assert_close(ours, model(part, use_cache=False).logits, atol=1e-5, rtol=1e-5)


def test_holes_in_a_mask_are_no_borders_of_documents():
    mask = torch.tensor([[0, 1, 1, 0, 0, 1, 1, 1, 1]]).expand(2, -1)
    counted = (mask.cumsum(1) - 1).clamp(min=0)
    for positions in (counted, counted.masked_fill(mask == 0, 1), torch.arange(9).expand(2, -1)):
        assert packed_documents(mask, positions, read=True)[1] is None


def trained(model, folder, **options):
    """A stock Trainer of one step on two rows, without padding."""
    own = {"save_strategy": "no", "label_names": ["labels"]}
    arguments = TrainingArguments(str(folder), max_steps=1, per_device_train_batch_size=2, **QUIET | own | options)
    rows = [{"input_ids": row, "labels": row} for row in draw(2, 9).tolist()]
    return Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)


@pytest.mark.parametrize("kind", ["contextlm", "lstm"])
def test_smoothed_labels_are_those_of_the_next_token(kind, tmp_path):
    """Trainer shifts them for models whose class it knows by name."""
    model, tokens = ALL[kind](), draw(2, 9)
    trainer = trained(model, tmp_path, label_smoothing_factor=0.1)
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits
    expected = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), label_smoothing=0.1)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_a_trainer_that_would_train_the_next_token_alone_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="heads 2 to 3 would not be trained"):
        trained(multitoken(), tmp_path, label_smoothing_factor=0.1).train()


def test_the_evaluation_loss_of_several_heads_is_that_of_the_next_token(tmp_path):
    model, tokens = multitoken(), draw(2, 9)
    with torch.no_grad():
        out = model.train()(tokens, labels=tokens)
        expected = nn.functional.cross_entropy(
            model.eval()(tokens).logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
        )
    assert out.loss > 2 * expected
    assert trained(model, tmp_path).evaluate()["eval_loss"] == pytest.approx(expected.item(), rel=1e-5)
