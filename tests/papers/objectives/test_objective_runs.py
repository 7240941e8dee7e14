"""A run under each objective: it learns, resumes, and counts its input and target tokens."""

import json

import pytest
import torch
import yaml
from torch.utils.data import default_collate
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.data import Corpus
from contextwise.experiments.cost import cost_of
from contextwise.models import load_model
from contextwise.models.spec import build_model, pretraining_losses
from contextwise.training import Recipe, train
from contextwise.training.export import model_card
from contextwise.training.inputs import TrainingInputs
from small import EXACT, recipe_values
from trained import cut_back, farthest, trained_by_two

MIXTURE = {
    "name": "mixture",
    "parts": [{"weight": 0.5, "objective": "causal"}, {"weight": 0.5, "objective": "infilling"}],
}
CASES = {
    "causal": ("gpt2", "causal"),
    "prefix": ("llama", "prefix"),
    "infilling": ("gpt_neox", "infilling"),
    "mixture": ("gpt2", MIXTURE),
    "masked": ("bert", "masked"),
    "next sentence": ("bert", "next_sentence"),
    "sentence order": ("bert", "sentence_order"),
    "spans": ("t5", {"name": "spans", "sentinels": 20}),
    "ul2": ("t5", {"name": "ul2", "sentinels": 40}),
}
# Each is like another case; causal is what tests/core/training/test_run.py trains.
SLOW = ("causal", "infilling", "ul2", "masked", "sentence order")
EACH = pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if case in SLOW else case for case in CASES]
)


def values(corpus, output, case, **training):
    family, objective = CASES[case]
    settings = {"steps": 8, "tokens_per_step": 640, "evaluation_tokens": 640, "evaluate_every": 0, "log_every": 1}
    result = recipe_values(corpus, output, **settings | training)
    result["data"]["context"] = 160
    result["model"] = {"family": family, "layers": 2, "width": 32, "heads": 2}
    return result | {"objective": objective}


def recipe(*arguments, **options):
    return validate(Recipe, values(*arguments, **options), "the recipe")


@pytest.mark.long
@EACH
def test_it_learns_counts_and_resumes(case, sentences_folder, tmp_path):
    whole = train(recipe(sentences_folder, tmp_path / "whole", case))
    rows = whole.metrics("train")
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.1

    # The counts of input and target tokens are those of the examples, step by step.
    task = TrainingInputs.open(recipe(sentences_folder, tmp_path / "whole", case))
    examples = [task.stream[i] for i in range(32)]
    targets = sum(int(example["labels"].ne(-100).sum()) for example in examples)
    read = sum(int(example.get("attention_mask", torch.ones_like(example["input_ids"])).sum()) for example in examples)
    summary = whole.summary()
    assert summary["target_tokens"] == rows[-1]["target_tokens"] == targets
    assert summary["input_tokens"] == read + (targets if task.config.is_encoder_decoder else 0)
    assert summary["tokens"] == 8 * 640
    planned = cost_of(recipe(sentences_folder, tmp_path / "whole", case))
    assert summary["flops"] == rows[-1]["flops"] == pytest.approx(planned.flops, rel=1e-12)
    assert summary["objective"] == task_name(case)

    # The first step's loss, from the model as it is drawn and the first examples.
    torch.manual_seed(0)
    from contextwise.models.spec import build_model

    first = pretraining_losses(build_model(task.config), without_names(default_collate(examples[:4])))
    assert rows[0]["loss"] == pytest.approx((first.sums[0] / first.counts[0]).item(), rel=1e-3)

    again = cut_back(whole, 8, tmp_path / "again")
    train(recipe(sentences_folder, again, case))
    assert farthest(whole.path, again) == 0


def task_name(case):
    objective = CASES[case][1]
    return objective if isinstance(objective, str) else objective["name"]


def without_names(batch):
    return {name: value for name, value in batch.items() if name not in ("window", "objective")}


@pytest.mark.long
@pytest.mark.parametrize(
    "case", ["ul2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("masked", "next sentence", "prefix"))]
)
def test_batches_with_different_numbers_of_targets_add_up_to_the_same_step(case, sentences_folder, tmp_path):
    train(recipe(sentences_folder, tmp_path / "whole", case, steps=4, **EXACT))
    train(recipe(sentences_folder, tmp_path / "parts", case, steps=4, micro_batch_tokens=160, **EXACT))
    assert farthest(tmp_path / "whole", tmp_path / "parts") < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("case", ["masked", "ul2"])
def test_two_processes_take_the_same_steps(case, sentences_folder, tmp_path):
    trained_by_two(tmp_path, values(sentences_folder, tmp_path, case, **EXACT))


@pytest.mark.parametrize(
    ("case", "auto"), [("masked", AutoModelForMaskedLM), ("spans", AutoModelForSeq2SeqLM), ("infilling", None)]
)
def test_the_export_opens_with_the_added_tokens(case, auto, sentences_folder, tmp_path, capsys):
    run = train(recipe(sentences_folder, tmp_path / "run", case, steps=2))
    assert "special tokens were added to the tokenizer" in capsys.readouterr().err
    tokenizer = AutoTokenizer.from_pretrained(run.model)
    added = len(tokenizer) - Corpus.open(sentences_folder).vocab_size
    assert added == {"masked": 3, "spans": 20, "infilling": 4}[case]
    model = load_model(run.path, device="cpu") if auto is None else auto.from_pretrained(run.model)
    assert model.get_input_embeddings().num_embeddings == len(tokenizer)


@pytest.mark.long
def test_the_export_reads_texts_as_it_was_trained(sentences_folder, tmp_path):
    encoder = train(recipe(sentences_folder, tmp_path / "encoder", "masked", steps=2))
    read = AutoTokenizer.from_pretrained(encoder.model)
    plain = Corpus.open(sentences_folder).tokenizer()
    a, b = (plain(text).input_ids for text in ("alpha beta", "gamma"))
    cls, sep = read.cls_token_id, read.sep_token_id
    assert read("alpha beta").input_ids == [cls, *a, sep]
    pair = read("alpha beta", "gamma", return_token_type_ids=True)
    assert pair.input_ids == [cls, *a, sep, *b, sep]
    assert pair.token_type_ids == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert read(["alpha", "alpha beta"], padding=True).attention_mask[0][-1] == 0
    assert read.decode([cls, *a, sep], skip_special_tokens=True) == "alpha beta"
    both = train(recipe(sentences_folder, tmp_path / "both", "spans", steps=2))
    for run, loader in ((encoder, "AutoModelForMaskedLM"), (both, "AutoModelForSeq2SeqLM")):
        card = model_card(run, standalone=False)
        assert f"model = {loader}.from_pretrained" in card and "| prompt |" not in card
    prefixed = model_card(train(recipe(sentences_folder, tmp_path / "prefix", "prefix", steps=2)), standalone=False)
    assert "| prompt | a prefix: its tokens see each other" in prefixed and "as trained: contextwise.models" in prefixed
    read = AutoTokenizer.from_pretrained(both.model)
    assert read("alpha beta").input_ids == [*a, read.eos_token_id]
    # A decoder's reads texts as the corpus's own does, and so does every corpus that is prepared with an encoder's.
    decoder = train(recipe(sentences_folder, tmp_path / "decoder", "infilling", steps=2))
    assert AutoTokenizer.from_pretrained(decoder.model)("alpha beta").input_ids == a


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param("masked", "masked", marks=pytest.mark.slow),
        ("masked", "next sentence"),
        pytest.param("next sentence", "masked", marks=pytest.mark.slow),
        pytest.param("spans", "ul2", marks=pytest.mark.slow),
    ],
)
def test_encoders_and_encoder_decoders_go_on_from_pretrained_ones(first, then, sentences_folder, tmp_path):
    before = train(recipe(sentences_folder, tmp_path / "before", first))
    more = values(sentences_folder, tmp_path / "after", then)
    more["model"] = {"pretrained": str(before.path)}
    after = train(validate(Recipe, more, "the recipe"))
    # It continues from the weights of the first, and is exported whole: with the pair head where there are pairs.
    assert after.metrics("train")[0]["loss"] < before.metrics("train")[0]["loss"] - 0.1
    architecture = json.loads((after.model / "config.json").read_text())["architectures"]
    wanted = {"masked": "BertForMaskedLM", "next sentence": "BertForPreTraining"}
    assert architecture == [wanted.get(then, "T5ForConditionalGeneration")]
    causal = validate(Recipe, more | {"objective": "causal", "output": str(tmp_path / "causal")}, "the recipe")
    with pytest.raises(ConfigError, match="another kind of model .decoder. than .*before .*name another model"):
        train(causal)


def test_an_encoder_is_no_causal_model_to_evaluate(sentences_folder, tmp_path):
    from contextwise.base.errors import CheckpointError

    run = train(recipe(sentences_folder, tmp_path / "run", "masked", steps=2))
    with pytest.raises(CheckpointError, match="a model of type .bert. .encoder. is not a causal language model"):
        load_model(run.path)


@pytest.mark.long
def test_a_pretrained_model_takes_an_objective_with_new_tokens(sentences_folder, tmp_path):
    first = train(recipe(sentences_folder, tmp_path / "first", "causal"))
    more = values(sentences_folder, tmp_path / "more", "infilling")
    more["model"] = {"pretrained": str(first.path)}
    run = train(validate(Recipe, more, "the recipe"))
    size = Corpus.open(sentences_folder).vocab_size
    assert load_model(run.path).get_input_embeddings().num_embeddings == size + 4
    # It continues from the weights of the first.
    assert run.metrics("train")[0]["loss"] < first.metrics("train")[0]["loss"] - 0.1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"objective": "masked"}, "needs another kind of model .encoder. than model.family gpt2 .decoder."),
        ({"objective": "spans"}, "set model.family to t5"),
        ({"objective": "causal", "model": {"family": "bert"}}, "gpt2 or gpt_neox or gpt2_rotary or llama"),
        (
            {"objective": "prefix", "model": {"context_predictor": {}}},
            "has bidirectional attention in a prefix, but model.context_predictor takes no mask for it; remove one",
        ),
        (
            {"objective": "prefix", "model": {"multi_token": {}}},
            "has bidirectional attention in a prefix, but model.multi_token takes no mask for it; remove one",
        ),
        (
            {"objective": "masked", "model": {"family": "bert", "multi_token": {}}},
            "model.multi_token does not apply to the family bert",
        ),
        ({"objective": "mlm"}, "the objective is 'mlm', but must be one of causal"),
        ({"objective": {"name": "masked", "rate": 1.5}}, "rate"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_read(change, words, tmp_path):
    result = values("no such corpus", tmp_path / "run", "causal")
    result["model"] = {"layers": 2, "width": 32, "heads": 2} | change.pop("model", {})
    with pytest.raises(ConfigError, match=words):
        validate(Recipe, result | change, "the recipe")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("then", ["contrastive", "next_sentence"])
def test_a_pretrained_models_special_tokens_keep_their_ids(then, sentences_folder, tmp_path):
    """The row of [CLS] that masked language modeling trained is the row that the next objective reads as [CLS]."""
    first = train(recipe(sentences_folder, tmp_path / "first", "masked", steps=2))
    second = values(str(sentences_folder), str(tmp_path / "second"), "masked", steps=2)
    second |= {"objective": then, "model": {"pretrained": str(first.path)}}
    inputs = TrainingInputs.open(validate(Recipe, second, "the recipe"))
    before, now = AutoTokenizer.from_pretrained(first.model), inputs.tokenizer
    ids = {token: now.convert_tokens_to_ids(token) for token in before.get_vocab()}
    assert ids == before.get_vocab() and now.mask_token_id == before.mask_token_id
    assert (now.cls_token_id, now.sep_token_id) == (before.cls_token_id, before.sep_token_id)
    example = inputs.stream[0]["input_ids"].tolist()
    assert example[0] == before.cls_token_id and before.sep_token_id in example
    assert inputs.config.vocab_size == len(now)


def test_going_on_without_an_objectives_tokens_keeps_them_in_the_tokenizer(sentences_folder, tmp_path):
    first = train(recipe(sentences_folder, tmp_path / "first", "infilling", steps=2))
    then = values(str(sentences_folder), str(tmp_path / "second"), "causal", steps=2)
    then["model"] = {"pretrained": str(first.path)}
    second = train(validate(Recipe, then, "the recipe"))
    known, kept = (AutoTokenizer.from_pretrained(run.model).get_added_vocab() for run in (first, second))
    assert known and kept == known


def test_padding_is_not_read_in_a_mixture_with_separate_documents(sentences_folder, tmp_path):
    """Rows of pairs in a mixture have positions as windows do, and padding: other tokens in its place change nothing."""
    mixed = values(str(sentences_folder), str(tmp_path / "run"), "masked")
    mixed["data"]["separate_documents"] = True
    parts = [{"weight": 0.5, "objective": name} for name in ("masked", "next_sentence")]
    mixed["objective"] = {"name": "mixture", "parts": parts}
    task = TrainingInputs.open(validate(Recipe, mixed, "the recipe"))
    batch = without_names(default_collate([task.stream[i] for i in range(8)]))
    padding = batch["attention_mask"] == 0
    assert padding.any() and "position_ids" in batch
    torch.manual_seed(0)
    model = build_model(task.config).eval()
    losses = pretraining_losses(model, batch).sums
    batch["input_ids"] = torch.where(padding, 7, batch["input_ids"])
    torch.testing.assert_close(pretraining_losses(model, batch).sums, losses)


def test_a_run_whose_windows_have_no_target_says_so(corpus_folder, tmp_path, contextwise):
    for rate, said in ((0.001, True), (0.5, False)):
        given = values(corpus_folder, tmp_path / f"{rate}", "masked", steps=2, tokens_per_step=16, evaluation_tokens=0)
        given["data"]["context"], given["objective"] = 8, {"name": "masked", "rate": rate}
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(given))
        status, _, errors = contextwise(f"train {tmp_path / 'recipe.yaml'}")
        assert status == 0
        assert ("no window had a target of the objective 'masked'" in " ".join(errors.split())) == said
