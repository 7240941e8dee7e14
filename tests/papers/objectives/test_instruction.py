"""Fine-tuning on instructions: the format, where the loss is, what is cut off, and equal batches for different models."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate
from transformers import GPT2Config, GPT2LMHeadModel

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError, DataError
from contextwise.data import Corpus, prepare_corpus
from contextwise.models import ContextLMForCausalLM, load_model, load_tokenizer
from contextwise.models.spec import pretraining_losses
from contextwise.objectives import Cut, Vocabulary
from contextwise.training import Recipe, train
from contextwise.training.batches import tokens_read
from contextwise.training.inputs import TrainingInputs
from contextwise_papers.objectives import Instruction
from contextwise_papers.objectives.alpaca import CHAT_TEMPLATE, PROMPT_CHARACTERS, prompt_text
from small import recipe_values

RECORDS = [
    {"instruction": "Name a colour.", "input": "", "output": "Red."},
    {"instruction": "Translate.", "input": "rouge", "output": "red ¡é!", "topic": "words"},
    {"instruction": "Quote.", "output": '"Quoted." ### Response:\nand more'},
    {"instruction": "Say: ### Response:\nno", "input": None, "output": "日本"},
]


def prepared(folder: Path, records: list[dict[str, Any]], tokenizer: str = "bytes", **options: Any) -> Corpus:
    folder.mkdir(exist_ok=True)
    (folder / "alpaca.json").write_text(json.dumps(records))
    return prepare_corpus(
        f"alpaca:{folder / 'alpaca.json'}", tokenizer, folder / "corpus", **{"validation": 0.0, **options}
    )


def small_model(positions: int) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(n_positions=positions, n_embd=16, n_layer=2, n_head=2, vocab_size=257, initializer_range=0.3)
    return GPT2LMHeadModel(config).eval()


def small_contextlm() -> ContextLMForCausalLM:
    return ContextLMForCausalLM.from_backbone(small_model(positions=400), chunk_size=4).eval()


def examples_of(corpus: Corpus, context: int = 400):
    return Instruction().examples(corpus, Cut(context), 0, Vocabulary(corpus.tokenizer(), corpus.end_of_text))


def test_the_published_prompts():
    assert prompt_text("Name a colour.") == (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nName a colour.\n\n### Response:"
    )
    assert prompt_text("Translate.", "rouge") == (
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nTranslate.\n\n### Input:\nrouge\n\n### Response:"
    )


@pytest.mark.parametrize("tokenizer", ["bytes", "train:270"])
def test_an_example_is_prompt_and_response_between_ends_of_text(tmp_path, tokenizer):
    corpus = prepared(tmp_path, RECORDS, tokenizer)
    known, end = corpus.tokenizer(), corpus.end_of_text
    examples = examples_of(corpus)
    assert examples.count(0) == 4 and examples.truncated == examples.left_out == 0
    for index, record in enumerate(RECORDS):
        example = examples.example(0, index)
        ids, labels = example["input_ids"], example["labels"]
        prompt = prompt_text(record["instruction"], record.get("input") or "")
        size = len(corpus.document(index))
        assert ids[0] == end and (ids[size + 1 :] == end).all() and len(ids) == len(labels) == 400
        assert known.decode(ids[1 : size + 1]) == prompt + record["output"]
        assert labels[size] == end and (labels[size + 1 :] == -100).all()
        asked = torch.nonzero(labels != -100).flatten()
        assert known.decode(labels[asked[:-1]]) == record["output"]
        assert (labels[asked[:-1]] == ids[asked[:-1] + 1]).all()  # shifted: each label is the next input
    assert corpus.column(PROMPT_CHARACTERS)[1] == len(prompt_text("Translate.", "rouge"))
    assert corpus.metadata(1)["topic"] == "words" and "output" not in corpus.columns


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.jsonl.gz", "pretty.json"])
def test_lists_and_lines_are_the_same_corpus(tmp_path, name):
    as_list, indent = name.endswith(".json"), 2 if name.startswith("pretty") else None
    text = json.dumps(RECORDS, indent=indent) if as_list else "\n".join(map(json.dumps, RECORDS))
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    corpus = prepare_corpus(f"alpaca:{tmp_path / name}", "bytes", tmp_path / "corpus", validation=0.0)
    other = prepared(tmp_path / "other", RECORDS)
    assert corpus.fingerprint == other.fingerprint
    assert corpus.manifest["sources"][0]["kind"] == "alpaca"


def test_truncation_is_at_the_right_counted_and_said(tmp_path, capsys):
    records = [{"instruction": "Go.", "output": "x" * n} for n in (5, 50, 500)]
    records.append({"instruction": "i" * 300, "output": "never seen"})
    corpus = prepared(tmp_path, records)
    prompt = len(prompt_text("Go."))
    examples = examples_of(corpus, prompt + 20)
    assert (examples.count(0), examples.truncated, examples.left_out) == (3, 2, 1)
    assert "of 4 instructions" in capsys.readouterr().err
    asked = [(examples.example(0, i)["labels"] != -100).sum().item() for i in range(3)]
    assert asked == [6, 20, 20]  # the end-of-text is asked for where it is in sight
    exact = examples_of(corpus, prompt + 5)
    assert exact.truncated == 3 and corpus.end_of_text not in exact.example(0, 0)["labels"]
    with pytest.raises(DataError, match=f"begins within {prompt} tokens; choose a larger data.context"):
        examples_of(corpus, prompt)


def test_a_token_of_prompt_and_response_belongs_to_the_prompt(tmp_path):
    corpus = prepared(tmp_path, [{"instruction": f"Q{i}", "output": f'"{i} quoted"'} for i in range(60)], "train:400")
    known = corpus.tokenizer()
    joined = known.get_vocab()[':"']
    example = examples_of(corpus, 200).example(0, 0)
    assert joined in example["input_ids"] and joined not in example["labels"]
    labels = example["labels"]
    assert known.decode(labels[labels != -100][:-1]) == '0 quoted"'


@pytest.mark.long
@settings(max_examples=25)
@given(
    output=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(str.strip),
    instruction=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
)
def test_the_loss_is_on_the_response_whatever_the_text(tmp_path_factory, output, instruction):
    corpus = prepared(tmp_path_factory.mktemp("one"), [{"instruction": instruction, "output": output}])
    labels = examples_of(corpus, 1000).example(0, 0)["labels"]
    asked = labels[labels != -100][:-1].numpy()
    assert corpus.tokenizer().decode(asked) == output


def test_filling_and_prompt_change_no_loss(tmp_path):
    corpus = prepared(tmp_path, RECORDS)
    model = small_contextlm()
    whole = examples_of(corpus).example(0, 1)
    labels = whole["labels"]
    size = int(torch.nonzero(labels != -100).max()) + 1
    with torch.no_grad():
        mean = pretraining_losses(model, default_collate([whole])).minimised()
        logits = model(whole["input_ids"][None, :size]).logits[0]
    expected = torch.nn.functional.cross_entropy(logits, labels[:size])  # ignores -100
    assert mean.item() == pytest.approx(expected.item(), rel=1e-5)
    assert (labels != -100).sum() == len("red ¡é!".encode()) + 1


def test_what_is_no_alpaca_file(tmp_path):
    for records, message in [
        ([{"instruction": "Go."}], "there is no field 'output' .fields: 'instruction'."),
        ([{"output": "Go."}], "record 1: the field 'instruction' is missing"),
        ([{"instruction": "Go.", "input": ["a"], "output": "x"}], "'input' is not a text but"),
        ([3], "entry 1: it is not a JSON object"),
        ([{"instruction": "Go.", "output": " "}], "no document with text was found"),
    ]:
        with pytest.raises(DataError, match=message) as caught:
            prepared(tmp_path / "bad", records)
        assert "text_field" not in str(caught.value)
    (tmp_path / "cut.json").write_text(json.dumps(RECORDS)[:-5])
    with pytest.raises(DataError, match="cut.json: the file is not JSON"):
        prepare_corpus(f"alpaca:{tmp_path / 'cut.json'}", "bytes", tmp_path / "out")
    with pytest.raises(DataError, match="there is no file"):
        prepare_corpus(f"alpaca:{tmp_path / 'none.json'}", "bytes", tmp_path / "out")


def test_a_corpus_around_its_source_is_not_replaced(tmp_path):
    corpus = prepared(tmp_path / "alpaca", RECORDS).path
    inside = corpus / "alpaca.json"
    inside.write_text(json.dumps(RECORDS))
    with pytest.raises(DataError, match="which overwriting would remove"):
        prepare_corpus(f"alpaca:{inside}", "bytes", corpus, overwrite=True)
    assert inside.exists()


def test_other_corpora_are_refused(tmp_path, corpus):
    with pytest.raises(
        ConfigError, match="prepare one with `contextwise prepare alpaca:FILE --tokenizer MODEL --out FOLDER`"
    ):
        Instruction().examples(corpus, Cut(64), 0, Vocabulary(corpus.tokenizer(), corpus.end_of_text))
    (tmp_path / "text.jsonl").write_text('{"text": "plain"}\n')
    (tmp_path / "alpaca.json").write_text(json.dumps(RECORDS))
    both = [str(tmp_path / "text.jsonl"), f"alpaca:{tmp_path / 'alpaca.json'}"]
    mixed = prepare_corpus(both, "bytes", tmp_path / "corpus", validation=0.0)
    with pytest.raises(ConfigError, match="document 0 of .* is no instruction"):
        examples_of(mixed)


def sft(corpus: Path, start: Path, output: Path, **training: Any) -> Recipe:
    values = recipe_values(
        corpus, output, **{"steps": 6, "tokens_per_step": 1600, "evaluate_every": 3, "log_every": 1, **training}
    )
    values["data"]["context"] = 400
    return validate(Recipe, values | {"model": {"pretrained": str(start)}, "objective": "instruction"}, "the recipe")


@pytest.mark.long
def test_two_models_see_the_same_batches_and_learn(tmp_path):
    records = [{"instruction": f"Say {i}.", "output": f"{i} it is."} for i in range(40)]
    corpus = prepared(tmp_path / "alpaca", records, validation=0.2).path
    runs = {}
    for name, start in (("plain", small_model(positions=400)), ("ours", small_contextlm())):
        place = tmp_path / f"start-{name}"
        start.save_pretrained(place)
        Corpus.open(corpus).tokenizer().save_pretrained(place)
        recipe = sft(corpus, place, tmp_path / name)
        runs[name] = (TrainingInputs.open(recipe), train(recipe))
    (plain, plain_run), (ours, ours_run) = runs["plain"], runs["ours"]
    for index in range(len(plain.stream)):
        a, b = plain.stream[index], ours.stream[index]
        assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
    rows = {run.path.name: list(run.metrics("train")) for run in (plain_run, ours_run)}
    for found in rows.values():
        assert found[-1]["loss"] < found[0]["loss"]
    assert load_tokenizer(ours_run.path).chat_template == CHAT_TEMPLATE
    assert isinstance(load_model(ours_run.path, device="cpu"), ContextLMForCausalLM)
    assert not isinstance(load_model(plain_run.path, device="cpu"), ContextLMForCausalLM)
    steps = [run.summary()["target_tokens"] for run in (plain_run, ours_run)]
    asked = sum((plain.stream[i]["labels"] != -100).sum().item() for i in range(24))
    assert steps == [asked, asked]


def test_padding_of_an_instruction_is_not_read(tmp_path):
    """What is read is an end of text and the tokens behind it, as far as they fit; the rest of the context is padding."""
    corpus = prepared(tmp_path, RECORDS)
    for context, examples in ((400, examples_of(corpus)), (200, examples_of(corpus, 200))):
        for index in range(examples.count(0)):
            length = int(corpus.lengths[examples.documents[index]])
            example = {name: value[None] for name, value in examples.example(0, index).items()}
            assert int(tokens_read(example, False)) == min(length + 1, context)
