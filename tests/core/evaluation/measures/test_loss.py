"""Whole evaluations: a prepared corpus and a saved model in, an evaluation folder out."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.normalizers import Lowercase
from torch.testing._internal.two_tensor import TwoTensor

from command_line import words_of
from contextwise.base.errors import CheckpointError, ConfigError, DataError, Interrupted
from contextwise.base.files import write_sealed_json
from contextwise.base.progress import interruption
from contextwise.comparison.comparison import compare
from contextwise.data import Corpus, prepare_corpus
from contextwise.data.tokenizers import byte_tokenizer
from contextwise.evaluation.kernel import InputFile, Measure, Outcome, Subject, measure, results_of
from contextwise.evaluation.measures.loss import Evaluation, Loss
from contextwise.evaluation.scoring.scores import totals
from contextwise.models.loading import load_model
from contextwise.models.tokenizers import corpus_tokenizer_hash
from measured import evaluate_model
from small import small_gpt2, write_rows

WORDS = ["the", "model", "predicts", "its", "context", "before", "next", "token", "text", "of"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Some dozens of short texts, as bytes."""
    folder = tmp_path_factory.mktemp("corpus")
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS, generator.integers(1, 30))) for _ in range(40)]
    (folder / "texts.jsonl").write_text(
        "".join(json.dumps({"text": f"{i} {text} é"}) + "\n" for i, text in enumerate(texts))
    )
    prepare_corpus(folder / "texts.jsonl", "bytes", folder / "texts", validation=0.4)
    return Corpus.open(folder / "texts", split="validation")


@pytest.fixture
def model(tmp_path, corpus, model_of):
    """A saved model with the corpus's tokenizer."""
    folder = tmp_path / "small"
    model_of("gpt2", vocab_size=corpus.vocab_size, n_positions=64).save_pretrained(folder)
    for file in (corpus.path / "tokenizer").iterdir():
        shutil.copy(file, folder)
    return folder


def test_unfinished_work_beside_its_result_is_removed(corpus, model, tmp_path):
    """The process that measured was killed after it had written the result."""
    first = evaluate_model(model, corpus, out=tmp_path / "out")
    left = tmp_path / "out.unfinished"
    left.mkdir()
    write_sealed_json(left / "question.json", {"key": first.summary["key"]})
    assert evaluate_model(model, corpus, out=tmp_path / "out").summary == first.summary
    assert not left.exists()


def test_an_evaluation_holds_what_an_independent_computation_gives(corpus, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evaluation = evaluate_model(model, corpus, context=64, stride=64)
    *folder, name = evaluation.path.relative_to(tmp_path).parts
    assert folder == ["evaluation", "small"] and name.startswith("evaluate-texts-validation-")
    summary = json.loads((evaluation.path / "summary.json").read_text())
    assert summary == Evaluation.open(evaluation.path).summary
    texts = [corpus.tokenizer().decode(corpus.document(i)) for i in range(len(corpus))]
    assert summary["bytes"] == sum(len(text.encode()) for text in texts) == corpus.bytes.sum()
    assert summary["words"] == sum(len(text.split()) for text in texts)
    assert summary["tokens"] == corpus.tokens and summary["documents"] == len(corpus)
    tokens, documents = evaluation.tokens(), evaluation.documents
    assert tokens.num_rows == corpus.tokens
    total = sum(tokens["nats"].to_pylist())
    assert sum(documents["nats"].to_pylist()) == pytest.approx(total)
    assert summary["loss"]["value"] == pytest.approx(total / corpus.tokens)
    assert summary["bits_per_byte"]["value"] == pytest.approx(total / math.log(2) / summary["bytes"])
    assert summary["loss"]["low"] < summary["loss"]["value"] < summary["loss"]["high"]
    assert summary["first_token_scored"] and summary["dtype"] == "float32"
    assert documents["document_hash"].to_pylist() == corpus.column("document_hash")


def test_a_run_is_scored_at_its_training_context_and_keeps_its_evaluation(corpus, model, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copytree(model, run / "model")
    (run / "recipe.yaml").write_text(yaml.safe_dump({"name": "x", "seed": 1, "data": {"context": 24}}))
    evaluation = evaluate_model(run, corpus)
    assert evaluation.path.parent == run / "evaluation"
    expected = {"context": 24, "stride": 12, "full_windows": False, "limit": None}
    assert evaluation.summary["settings"] == expected
    visible = evaluation.tokens()["visible"].to_numpy()
    assert visible.max() == 24 and visible.min() == 0
    again = evaluate_model(run, corpus, limit=3, context=1)
    assert Evaluation.open(again.path).summary["documents"] == 3
    assert again.summary["settings"]["stride"] == 1 and set(again.tokens()["visible"].to_pylist()) == {0, 1}
    assert {result.path for result in results_of(run / "evaluation")} == {evaluation.path, again.path}


def test_measuring_again_gives_the_same_numbers(corpus, model, tmp_path):
    first, second = (evaluate_model(model, corpus, out=tmp_path / name) for name in ("first", "second"))
    for table in ("tokens", "documents"):
        assert first.table_of(table).equals(second.table_of(table))
    without = [{k: v for k, v in result.summary.items() if k != "seconds"} for result in (first, second)]
    assert without[0] == without[1]


def test_a_result_is_found_again_for_the_same_question_only(corpus, model, tmp_path, monkeypatch, model_of):
    monkeypatch.chdir(tmp_path)
    first = evaluate_model(model, corpus)
    written = (first.path / "summary.json").stat().st_mtime_ns
    assert evaluate_model(f"{model}/", corpus).path == first.path
    assert (first.path / "summary.json").stat().st_mtime_ns == written
    others = [
        evaluate_model(model, corpus, limit=5),
        evaluate_model(model, corpus, context=32),
        evaluate_model(model, corpus, stride=8),
        evaluate_model(model, corpus, dtype="bfloat16"),
        evaluate_model(model, Corpus.open(corpus.path, "train")),
    ]
    model_of("gpt2", seed=1, vocab_size=corpus.vocab_size, n_positions=64).save_pretrained(model)
    others.append(evaluate_model(model, corpus))
    assert len({result.path for result in (first, *others)}) == 7
    assert others[-1].summary["loss"] != first.summary["loss"]


def test_adapters_and_shards_in_folders_belong_to_the_model(corpus, model, tmp_path):
    first = evaluate_model(model, corpus, out=tmp_path / "first").summary["digest"]
    (model / "adapter_config.json").write_text(json.dumps({"lora_alpha": 8}))
    adapted = Subject(model).digest
    (model / "adapter_config.json").unlink()
    (model / "shards").mkdir()
    (model / "model.safetensors").rename(model / "shards" / "a.safetensors")
    weights = load_file(model / "shards" / "a.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "shards/a.safetensors")}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    sharded = evaluate_model(model, corpus, out=tmp_path / "sharded").summary["digest"]
    name = "transformer.ln_f.weight"
    save_file(weights | {name: weights[name] * 2}, model / "shards" / "a.safetensors", {"format": "pt"})
    changed = evaluate_model(model, corpus, out=tmp_path / "changed").summary["digest"]
    assert len({first, adapted, sharded, changed}) == 4


def test_quantized_weights_belong_to_a_loaded_model():
    """They are tensors of a library's own class, which has no bytes of its own, but parts that have."""

    def digest(value: float) -> str:
        model = small_gpt2(11)
        parts = torch.ones(8, 4), torch.full((8, 4), value)
        model.transformer.h[0].mlp.c_fc.weight = torch.nn.Parameter(TwoTensor(*parts))
        return Subject(model).digest

    assert digest(1.0) == digest(1.0) != digest(2.0)


@pytest.mark.parametrize("name", ["summary.json", "documents.parquet", "tokens.parquet"])
def test_a_result_that_has_changed_is_refused(corpus, model, tmp_path, name):
    result = evaluate_model(model, corpus, out=tmp_path / "result")
    file = result.path / name
    content = bytearray(file.read_bytes())
    digit = content.index(b'"loss"') if name == "summary.json" else len(content) // 2
    content[digit + 1] ^= 1
    file.write_bytes(content)
    with pytest.raises(
        DataError, match=f"damaged: {name} has changed since it was written; remove it and measure again"
    ):
        Evaluation.open(result.path).table_of(name.removesuffix(".parquet"))


def test_overwriting_removes_nothing_else_and_follows_links(corpus, model, tmp_path):
    (tmp_path / "link").symlink_to("result")
    for limit in (1, 2):
        evaluate_model(model, corpus, out=tmp_path / "link", limit=limit, overwrite=True)
        assert Evaluation.open(tmp_path / "result").summary["settings"]["limit"] == limit
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "result" / "notes.md").write_text("mine")
    with pytest.raises(DataError, match=r"result holds notes\.md, which overwriting would remove"):
        evaluate_model(model, corpus, out=tmp_path / "result", limit=3, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"result", "link", model.name}


@pytest.mark.parametrize(("name", "folder"), [("a/b", "a-b"), (".", "model"), ("..", "model")])
def test_results_of_a_loaded_model_lie_in_a_folder_of_its_name(model_of, name, folder):
    assert Subject(model_of("gpt2"), name=name).home == Path("evaluation") / folder


def test_a_model_that_is_replaced_while_it_is_measured_has_no_result(corpus, model, tmp_path, monkeypatch, model_of):
    run = Loss.run

    def and_another_process_trains(self, subject, *arguments):
        outcome = run(self, subject, *arguments)
        model_of("gpt2", seed=1, vocab_size=corpus.vocab_size, n_positions=64).save_pretrained(model)
        return outcome

    monkeypatch.setattr(Loss, "run", and_another_process_trains)
    with pytest.raises(CheckpointError, match="was replaced while it was measured; measure it again"):
        evaluate_model(model, corpus, out=tmp_path / "result")
    assert not (tmp_path / "result").exists()


def test_a_corpus_that_is_replaced_while_it_is_measured_has_no_result(corpus, model, tmp_path, monkeypatch):
    shutil.copytree(corpus.path, tmp_path / "corpus")
    run, own = Loss.run, Corpus.open(tmp_path / "corpus", corpus.split)

    def and_another_process_prepares(self, *arguments):
        outcome = run(self, *arguments)
        texts = tmp_path / "texts.txt"
        texts.write_text("other words")
        prepare_corpus([f"{corpus.split}={texts}"], "bytes", own.path, overwrite=True)
        return outcome

    monkeypatch.setattr(Loss, "run", and_another_process_prepares)
    with pytest.raises(DataError, match="corpus was replaced while it was in use; start again"):
        evaluate_model(model, own, out=tmp_path / "result")
    assert not (tmp_path / "result").exists()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_file_that_changes_while_it_is_read_has_no_result_and_no_work(model, tmp_path, stopped):
    file = tmp_path / "file"
    file.write_text("as it is hashed")

    class Reads(Measure):
        name = "reads"
        on_corpus = False
        file: InputFile

        def run(self, subject, corpus, work):
            self.file.write_text("as it is read")
            work.save("part", {"a": np.zeros(1)})
            if stopped:
                raise Interrupted("the measurement was stopped")
            return Outcome({})

        @classmethod
        def table(cls, summary):
            return ""

    with pytest.raises(DataError, match="a file that reads reads was changed while it was read"):
        measure(model, Reads(file=file), out=tmp_path / "result")
    assert {path.name for path in tmp_path.iterdir()} == {"file", model.name}


class Bare(Measure):
    """Measures nothing, without a corpus."""

    name = "bare"
    on_corpus = False

    def run(self, subject, corpus, work):
        return Outcome({})

    @classmethod
    def table(cls, summary):
        return ""


def test_nothing_is_kept_of_a_model_that_turns_out_to_be_damaged(model, tmp_path):
    class Fails(Bare):
        def run(self, subject, corpus, work):
            work.save("part", {"a": np.zeros(1)})
            raise CheckpointError("the model's logits are not numbers")

    with pytest.raises(CheckpointError, match="not numbers"):
        measure(model, Fails(), out=tmp_path / "result")
    assert [path.name for path in tmp_path.iterdir()] == [model.name]


def test_a_loaded_model_that_reads_with_another_tokenizer_is_another_question(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [measure(load_model(model), Bare()).path for _ in range(2)]
    other = byte_tokenizer().tokenizer
    changes: list[Callable[[], Any]] = [
        lambda: setattr(other.backend_tokenizer, "normalizer", Lowercase()),
        lambda: other.add_tokens(["the"]),
        lambda: setattr(other, "chat_template", "{{ messages }}"),
    ]
    for change in changes:
        change()
        other.save_pretrained(model)
        paths.append(measure(load_model(model), Bare()).path)
    assert paths[0] == paths[1] and len(set(paths)) == 4


def test_a_model_without_a_recipe_is_scored_at_its_positions_up_to_1024(corpus, tmp_path, model_of):
    for positions, expected in ((32, 32), (2048, 1024)):
        model_of("gpt2", vocab_size=corpus.vocab_size, n_positions=positions).save_pretrained(tmp_path / "m")
        evaluation = evaluate_model(tmp_path / "m", corpus, limit=2, out=tmp_path / f"e{positions}")
        assert evaluation.summary["settings"]["context"] == expected


def test_contextlm_and_a_wider_vocabulary_work(corpus, tmp_path, model_of):
    model_of("contextlm", vocab_size=corpus.vocab_size + 7).save_pretrained(tmp_path / "m")
    summary = evaluate_model(tmp_path / "m", corpus, limit=2, out=tmp_path / "e").summary
    assert summary["settings"]["context"] == 12 and summary["loss"]["value"] > 0


@pytest.mark.parametrize(("losses", "below"), [((0.1, 4.0), True), ((4.0, 4.01), False)])
def test_an_interval_that_reaches_below_zero_is_explained(corpus, model, tmp_path, losses, below):
    result = evaluate_model(model, corpus, limit=2, out=tmp_path / "e")
    nats = result.documents["tokens"].to_numpy() * losses
    documents = result.documents.set_column(result.documents.column_names.index("nats"), "nats", [nats])
    summary = result.summary | totals(documents)
    assert (summary["loss"]["low"] < 0) is below is ("No loss is below zero" in words_of(Loss.table(summary)))


def test_bfloat16_is_taken_when_asked_for(corpus, model, tmp_path):
    exact = evaluate_model(model, corpus, out=tmp_path / "a").summary
    rounded = evaluate_model(model, corpus, out=tmp_path / "b", dtype="bfloat16").summary
    assert rounded["dtype"] == "bfloat16"
    assert rounded["loss"]["value"] == pytest.approx(exact["loss"]["value"], rel=0.02)
    assert rounded["loss"]["value"] != exact["loss"]["value"]


def test_a_bin_file_has_no_words_bytes_or_end_of_text(model, tmp_path):
    np.random.default_rng(0).integers(0, 256, 100).astype(np.uint16).tofile(tmp_path / "text.bin")
    evaluation = evaluate_model(model, Corpus.open(tmp_path / "text.bin"), out=tmp_path / "e")
    assert evaluation.summary["tokens"] == 99 and not evaluation.summary["first_token_scored"]
    assert evaluation.summary["bits_per_byte"] is None and evaluation.summary["bytes"] is None
    assert evaluation.summary["loss"]["low"] is None
    assert pq.read_table(evaluation.path / "documents.parquet")["bytes"].null_count == 1


class TestRefusals:
    """Each in one sentence, before anything is written."""

    def test_models_and_data_that_do_not_fit(self, corpus, model, tmp_path, model_of):
        prepare_corpus(corpus.path.parent / "texts.jsonl", "train:300", tmp_path / "bpe", validation=0.4)
        model_of("gpt2", vocab_size=100).save_pretrained(tmp_path / "m")
        for source, data, error, message in (
            (model, tmp_path / "bpe", DataError, f"another tokenizer than that of {model}; prepare a corpus"),
            (tmp_path / "m", corpus.path, DataError, f"vocabulary of {corpus.vocab_size} tokens, but .* has only 100"),
            (tmp_path, corpus.path, CheckpointError, "contains no model"),
        ):
            with pytest.raises(error, match=message):
                evaluate_model(source, Corpus.open(data, "validation"), out=tmp_path / "e")
        assert not (tmp_path / "e").exists()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"context": 65}, "context is 65, but .* has only 64 positions; give at most 64"),
            ({"stride": 65}, "stride is 65; it must be between 1 and the context, 64"),
            ({"dtype": "int8"}, "dtype is 'int8'; it must be one of auto, float32"),
            ({"device": "warp"}, "device is 'warp', which this machine does not have"),
        ],
    )
    def test_options(self, corpus, model, tmp_path, options, message):
        with pytest.raises(ConfigError, match=message):
            evaluate_model(model, corpus, out=tmp_path / "e", **options)
        assert not (tmp_path / "e").exists()

    def test_a_place_that_holds_something_else(self, corpus, model, tmp_path, model_of):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.tex").write_text("years of work")
        with pytest.raises(ConfigError, match="holds no result of a measurement.*choose another folder"):
            evaluate_model(model, corpus, out=tmp_path / "mine")
        evaluate_model(model, corpus, limit=2, out=tmp_path / "e")
        model_of("gpt2", vocab_size=corpus.vocab_size).save_pretrained(tmp_path / "m")
        with pytest.raises(ConfigError, match=r"holds another result of contextwise measure evaluate \(of .*small"):
            evaluate_model(tmp_path / "m", corpus, out=tmp_path / "e")
        with pytest.raises(ConfigError, match=r"holds another result .*texts-validation"):
            evaluate_model(model, Corpus.open(corpus.path, "train"), out=tmp_path / "e")

    def test_a_corpus_whose_bytes_changed(self, corpus, model, tmp_path):
        copy = shutil.copytree(corpus.path, tmp_path / "copy")
        file = next((copy / "validation").glob("*.arrow"))
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        with pytest.raises(DataError, match=file.name):
            evaluate_model(model, Corpus.open(copy, "validation"), out=tmp_path / "e")

    def test_a_stopped_evaluation_leaves_the_one_before(self, corpus, model, tmp_path, monkeypatch):
        evaluate_model(model, corpus, limit=2, out=tmp_path / "e")
        monkeypatch.setattr(type(interruption), "requested", True)
        with pytest.raises(Interrupted, match=": scoring was stopped; run the same command again; what is fin"):
            evaluate_model(model, corpus, out=tmp_path / "e", overwrite=True)
        assert Evaluation.open(tmp_path / "e").summary["documents"] == 2


def test_a_tokenizer_saved_again_is_the_same_tokenizer(corpus, tmp_path):
    corpus.tokenizer().save_pretrained(tmp_path / "tokenizer")
    written = (tmp_path / "tokenizer" / "tokenizer.json").read_text()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(json.dumps(json.loads(written)))  # other bytes
    assert corpus_tokenizer_hash(tmp_path) == corpus_tokenizer_hash(corpus.path) is not None
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer\.json cannot be read"):
        corpus_tokenizer_hash(tmp_path)


def test_weights_that_are_not_numbers_are_named(corpus, tmp_path, model_of):
    broken = model_of("gpt2", vocab_size=corpus.vocab_size)
    torch.nn.init.constant_(broken.transformer.wpe.weight, float("nan"))
    broken.save_pretrained(tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"wpe\.weight of .* hold numbers that are not finite"):
        evaluate_model(tmp_path / "m", corpus, out=tmp_path / "e")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool])
def test_whole_numbers_are_no_weights(corpus, tmp_path, model_of, dtype):
    model_of("gpt2", vocab_size=corpus.vocab_size).save_pretrained(tmp_path / "m")
    weights = load_file(tmp_path / "m" / "model.safetensors")
    weights["h.0.attn.bias"] = torch.ones(1, 1, 32, 32, dtype=dtype)  # the mask that old checkpoints hold
    save_file(weights, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    (tmp_path / "m" / "other.safetensors").write_bytes(b"not read by transformers")
    evaluate_model(tmp_path / "m", corpus, out=tmp_path / "e", limit=1)
    weights["transformer.wpe.weight"] = weights["transformer.wpe.weight"].to(dtype)
    save_file(weights, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"transformer\.wpe\.weight in .* are whole numbers"):
        evaluate_model(tmp_path / "m", corpus, out=tmp_path / "f", limit=1)


def shown(result):
    console = Console(width=400)
    with console.capture() as text:
        console.print(Loss.table(result.summary))
    return text.get()


def test_figures_per_byte_are_of_the_documents_whose_text_the_tokens_hold(tmp_path, model_of, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = json.loads(byte_tokenizer().backend.to_str())
    settings["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "lower.json").write_text(json.dumps(settings))
    texts = [f"{'T' if i % 3 == 0 else 't'}ext number {i}{' é' * i}" for i in range(30)]
    write_rows(tmp_path / "texts.jsonl", ({"text": text} for text in texts))
    prepare_corpus("validation=texts.jsonl", "lower.json", "lower", end_of_text="<|endoftext|>")
    prepare_corpus("validation=texts.jsonl", "bytes", "whole")
    results = {}
    for name in ("lower", "whole"):
        corpus = Corpus.open(name, "validation")
        model_of("gpt2", vocab_size=257, n_positions=64).save_pretrained(f"of-{name}")
        corpus.tokenizer().save_pretrained(f"of-{name}")
        results[name] = evaluate_model(f"of-{name}", corpus, context=64)
    summary, documents = results["lower"].summary, results["lower"].documents
    assert summary["lost_texts"] == 10 and summary["bytes"] == sum(
        len(text.encode()) for text in texts[1::3] + texts[2::3]
    )
    held = [text.startswith("t") for text in texts]
    nats = sum(documents["nats"].filter(pa.array(held)).to_pylist())
    assert summary["bits_per_byte"]["value"] == pytest.approx(nats / math.log(2) / summary["bytes"])
    assert summary["loss"]["value"] == pytest.approx(sum(documents["nats"].to_pylist()) / summary["tokens"])
    assert (
        "leave out 10 of the documents" in (table := shown(results["lower"]))
        and "bits per byte (20 documents)" in table
    )
    assert results["whole"].summary["lost_texts"] == 0 and "leave out" not in shown(results["whole"])
    # The models are equal, and so are the tokens of texts in lower case.
    compared = compare(["of-lower", "of-whole"], results=[*results.values()], unit="byte")
    assert compared.documents == 20 and compared.differences[0].difference.value == 0
    assert "leave out 10 of 30 documents" in compared.notes[0]


def test_a_tokenizer_that_holds_no_text_has_no_figure_per_byte(tmp_path, model_of, monkeypatch):
    monkeypatch.chdir(tmp_path)
    backend = Tokenizer(models.WordLevel({"the": 0, "<unk>": 1, "</s>": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.save("words.json")
    write_rows(tmp_path / "texts.jsonl", ({"text": f"the end {i}"} for i in range(8)))
    corpus = prepare_corpus("validation=texts.jsonl", "words.json", "c")
    model_of("gpt2", vocab_size=3, n_positions=64).save_pretrained("m")
    corpus.tokenizer().save_pretrained("m")
    result = evaluate_model("m", corpus, context=64)
    assert result.summary["lost_texts"] == 8 and result.summary["loss"]["value"] > 0
    assert [result.summary[key] for key in ("bytes", "bits_per_byte", "byte_perplexity", "word_perplexity")] == [
        None
    ] * 4
    assert "No figure per byte or word is given" in shown(result)
    shutil.copytree("m", "n")
    again = evaluate_model("n", corpus, context=64)
    with pytest.raises(DataError, match="with a tokenizer that loses text.*compare in nats per token"):
        compare(["m", "n"], results=[result, again], unit="byte")
