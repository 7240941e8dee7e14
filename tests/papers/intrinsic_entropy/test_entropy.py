"""The measuring run: its files against a brute-force computation, stopping and going on, and what it refuses."""

import shutil

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from contextwise.base.errors import CheckpointError, ConfigError, DataError, Interrupted
from contextwise.data import Corpus, prepare_corpus
from contextwise.evaluation.kernel import measure
from contextwise.evaluation.scoring.truncated import TruncatedBatch, choose_targets
from contextwise_papers.intrinsic_entropy.entropy import Entropy, EntropyResult
from contextwise_papers.intrinsic_entropy.entropy import running as module
from small import write_documents

CONTEXTS = [4, 8, 16]


def measure_entropy(model, corpus, contexts, *, out=None, overwrite=False, **settings):
    run = {name: settings.pop(name) for name in ("batch_tokens", "dtype", "device") if name in settings}
    return measure(model, Entropy(contexts=contexts, **settings), corpus, out=out, overwrite=overwrite, **run)


SETTINGS = {"samples": 120, "density_samples": 40, "batch_tokens": 160}


@pytest.fixture(scope="module")
def model_folder(corpus_folder, tmp_path_factory):
    """A llama of one layer with the corpus's vocabulary and tokenizer."""
    corpus = Corpus.open(corpus_folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=corpus.vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    folder = tmp_path_factory.mktemp("model") / "llama"
    LlamaForCausalLM(config).save_pretrained(folder)
    corpus.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def corpus(corpus_folder):
    return Corpus.open(corpus_folder, split="train")


@pytest.fixture(scope="module")
def measured(model_folder, corpus_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("measured") / "entropy"
    return measure_entropy(model_folder, Corpus.open(corpus_folder), CONTEXTS, out=out, **SETTINGS)


def same(first: EntropyResult, second: EntropyResult) -> None:
    for context in CONTEXTS:
        assert np.array_equal(first.spectra()[context], second.spectra()[context])
        assert torch.equal(first.features(context), second.features(context))
    assert first.targets().equals(second.targets())
    assert first.losses() == second.losses()


def test_the_files_hold_what_brute_force_finds(measured, model_folder, corpus):
    model = LlamaForCausalLM.from_pretrained(model_folder).eval()
    targets = choose_targets(corpus, 16, 120, 0)
    table = measured.targets().to_pandas()
    again = EntropyResult.open(measured.path)
    assert again.contexts == CONTEXTS and again.summary["documents"] == len(set(targets.document))
    for context in CONTEXTS:
        rows = table[table["context"] == context]
        assert rows["document"].tolist() == targets.document.tolist()
        assert rows["position"].tolist() == targets.position.tolist()
        nats, features = [], []
        for document, position in zip(targets.document, targets.position, strict=True):
            tokens = torch.from_numpy(corpus.document(document)[position - context : position + 1].astype(np.int64))
            with torch.no_grad():
                found = model(input_ids=tokens[None, :-1], output_hidden_states=True)
            nats.append(-float(found.logits[0, -1].log_softmax(-1)[tokens[-1]]))
            features.append(found.hidden_states[-1][0, -1])
        np.testing.assert_allclose(rows["nats"], nats, atol=1e-4)
        assert again.losses()[context] == pytest.approx(np.mean(nats), abs=1e-4)
        covariance = np.cov(torch.stack(features).double().numpy().T)
        np.testing.assert_allclose(again.spectra()[context], np.linalg.eigvalsh(covariance)[::-1], rtol=1e-3, atol=1e-6)
        kept = again.features(context)
        distances = torch.cdist(kept, torch.stack(features), compute_mode="donot_use_mm_for_euclid_dist").amin(1)
        assert kept.shape == (40, 16) and distances.max() < 1e-3


def test_differences_are_of_the_same_targets(measured):
    table = measured.targets().to_pandas().pivot(index=["document", "position"], columns="context", values="nats")
    for context in CONTEXTS[:-1]:
        found = measured.summary["differences"][str(context)]
        assert found["value"] == pytest.approx(float((table[context] - table[16]).mean()), abs=1e-6)
        assert found["low"] < found["value"] < found["high"]
    assert "16" not in measured.summary["differences"]
    frame = measured.to_pandas()  # what a notebook shows
    assert frame["loss"].tolist() == [measured.summary["losses"][str(context)]["value"] for context in CONTEXTS]
    assert "95% interval" in str(measured) and "<table>" in measured._repr_html_()


def test_features_of_an_inner_layer_go_with_the_same_losses(measured, model_folder, corpus, tmp_path):
    inner = measure_entropy(model_folder, corpus, CONTEXTS, out=tmp_path / "e", layer=0, **SETTINGS)
    assert inner.losses() == pytest.approx(measured.losses(), rel=1e-6)
    assert not np.allclose(inner.spectra()[16], measured.spectra()[16])


@pytest.mark.parametrize("looks", [3, 8, 20])
def test_a_stopped_run_resumes_to_the_same_files(looks, measured, model_folder, corpus, tmp_path, stop_at):
    out = tmp_path / "entropy"
    stop_at(looks)
    with pytest.raises(Interrupted, match=r"the measurement was stopped at a context of \d+ tokens, .* to resume"):
        measure_entropy(model_folder, corpus, CONTEXTS, out=out, **SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["entropy.unfinished"]
    whole = sum(-(-120 // (160 // context)) for context in CONTEXTS)
    stop_at(whole - looks + 1)  # more looks than the batches that are left
    same(measure_entropy(model_folder, corpus, CONTEXTS, out=out, **SETTINGS), measured)
    assert [path.name for path in tmp_path.iterdir()] == ["entropy"]


def test_another_model_does_not_resume_where_this_one_stopped(model_folder, corpus, tmp_path, measured, stop_at):
    other = shutil.copytree(model_folder, tmp_path / "other")
    model = LlamaForCausalLM.from_pretrained(other)
    with torch.no_grad():
        model.model.norm.weight[0] = 7.0
    model.save_pretrained(other)
    stop_at(5)
    with pytest.raises(Interrupted):
        measure_entropy(model_folder, corpus, CONTEXTS, out=tmp_path / "e", **SETTINGS)
    stop_at(0)
    with pytest.raises(ConfigError, match="unfinished work of another measurement .model or data differ"):
        measure_entropy(other, corpus, CONTEXTS, out=tmp_path / "e", **SETTINGS)
    result = measure_entropy(other, corpus, CONTEXTS, out=tmp_path / "e", overwrite=True, **SETTINGS)
    assert result.spectra()[4][0] > 2 * measured.spectra()[4][0]


def test_damaged_unfinished_work_is_measured_again(model_folder, corpus, tmp_path, measured, stop_at):
    stop_at(8)
    with pytest.raises(Interrupted):
        measure_entropy(model_folder, corpus, CONTEXTS, out=tmp_path / "e", **SETTINGS)
    stop_at(0)
    states = list(tmp_path.rglob("*.safetensors"))
    assert len(states) == 2
    for state in states:
        state.write_bytes(state.read_bytes()[:100])
    same(measure_entropy(model_folder, corpus, CONTEXTS, out=tmp_path / "e", **SETTINGS), measured)


def test_bfloat16_features_are_summed_in_64_bits(model_folder, corpus, tmp_path):
    settings = {**SETTINGS, "density_samples": 120}
    found = measure_entropy(model_folder, corpus, [8], out=tmp_path / "e", dtype="bfloat16", **settings)
    features = found.features(8)
    assert features.dtype == torch.bfloat16 and found.summary["dtype"] == "bfloat16"
    expected = np.linalg.eigvalsh(np.cov(features.double().numpy().T))[::-1]
    np.testing.assert_allclose(found.spectra()[8], expected, rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_eigenvalues_that_rounding_makes_count_as_zero(corpus, tmp_path, dtype):
    """Behind a layer norm features have one direction less than channels, in each number format."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=corpus.vocab_size, n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.3
    )
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    corpus.tokenizer().save_pretrained(tmp_path / "gpt2")
    found = measure_entropy(tmp_path / "gpt2", corpus, [8], out=tmp_path / "e", dtype=dtype, **SETTINGS)
    assert np.count_nonzero(found.spectra()[8]) == 15
    noted = [
        note for note in found.summary["notes"] if "rounding hides the smallest eigenvalues, up to 1 of 16" in note
    ]
    assert len(noted) == (dtype != "float32")
    states = {8: module.ContextState(8, 10, np.arange(2))}
    states[8].kept, states[8].eigenvalues = torch.empty(2, 16, dtype=torch.bfloat16), np.r_[np.ones(9), np.zeros(7)]
    assert module.hidden_by_rounding(states) == []  # nine differences of ten samples


@pytest.mark.long
def test_fewer_tokens_than_asked_are_all_taken_and_said(model_folder, tmp_path):
    prepare_corpus(write_documents(tmp_path / "text.jsonl", 2), "bytes", tmp_path / "corpus", validation=0.0)
    corpus = Corpus.open(tmp_path / "corpus")
    eligible = int(np.maximum(0, corpus.lengths - 60).sum())
    settings = {**SETTINGS, "samples": 10**6}
    found = measure_entropy(model_folder, corpus, [60], out=tmp_path / "e", **settings)
    assert found.summary["samples"] == eligible and found.summary["settings"]["samples"] == 10**6
    assert f"only {eligible:,} tokens with the longest context before them" in found.summary["notes"][0]


def test_few_samples_for_the_width_are_said(model_folder, corpus, tmp_path):
    settings = {**SETTINGS, "samples": 60}
    found = measure_entropy(model_folder, corpus, [4], out=tmp_path / "e", **settings)
    assert "60 samples are few for 16 channels" in found.summary["notes"][0]
    assert "At most 59 can differ from zero." in module.notes(60, 60, 80)[0]
    assert module.notes(500, 500, 80) == []


def test_a_run_may_be_named_from_anywhere(model_folder, corpus, tmp_path, monkeypatch):
    shutil.copytree(model_folder, tmp_path / "runs" / "a" / "model")
    (tmp_path / "runs" / "a" / "recipe.yaml").write_text("name: a\n")
    monkeypatch.chdir(tmp_path)
    first = measure_entropy("runs/a", corpus, [4, 16], **SETTINGS)
    monkeypatch.chdir(tmp_path / "runs")
    again = measure_entropy("a", corpus, [16, 4], **SETTINGS)
    assert again.path.resolve() == (tmp_path / first.path).resolve()


@pytest.mark.parametrize(
    ("contexts", "settings", "error", "message"),
    [
        ([4, 4], {}, ValueError, "contexts is 4, 4; give different lengths"),
        ([0], {}, ValueError, "contexts is 0"),
        ([], {}, ValueError, "at least 1 item"),
        ([4, 65], {}, ConfigError, "context of 65 tokens does not fit the model, which has 64 positions"),
        ([4, 5000], {}, DataError, "no document has a token with 5,000 tokens before it"),
        ([4], {"samples": 49}, ConfigError, "49 samples are too few for a spectrum"),
        ([4], {"samples": 0}, ValueError, "samples"),
        ([4], {"seed": -1}, ValueError, "seed"),
        ([4, 10**14], {}, DataError, "no document has a token with 100,000,000,000,000 tokens"),
        ([4], {"density_samples": 1}, ValueError, "density_samples"),
        ([4], {"layer": 2}, ConfigError, "the layer is 2, but the model has hidden states 0"),
        ([4], {"batch_tokens": 0}, ConfigError, "batch_tokens is 0"),
        ([4], {"dtype": "int8"}, ConfigError, "dtype is 'int8'"),
    ],
)
def test_bad_options_are_refused(model_folder, corpus, tmp_path, contexts, settings, error, message):
    with pytest.raises(error, match=message):
        measure_entropy(model_folder, corpus, contexts, out=tmp_path / "e", **{**SETTINGS, **settings})
    assert not list(tmp_path.iterdir())


def test_far_too_few_samples_for_the_width_are_refused(model_folder, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LEAST_PER_CHANNEL", 10)
    with pytest.raises(ConfigError, match="120 samples are too few for features of 16 channels: .* set samples to 160"):
        measure_entropy(model_folder, corpus, CONTEXTS, out=tmp_path / "e", **SETTINGS)


def test_features_that_do_not_vary_are_refused(model_folder, corpus, tmp_path):
    constant = LlamaForCausalLM.from_pretrained(model_folder)
    with torch.no_grad():
        constant.model.norm.weight.zero_()
    folder = shutil.copytree(model_folder, tmp_path / "constant")
    constant.save_pretrained(folder)
    with pytest.raises(CheckpointError, match="do not vary from sample to sample at a context of 4 tokens"):
        measure_entropy(folder, corpus, CONTEXTS, out=tmp_path / "e", **SETTINGS)
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(("features", "vary"), [(torch.ones(60, 3), False), (torch.eye(3).repeat(20, 1), True)])
def test_equal_features_do_not_vary(features, vary):
    state = module.ContextState(8, 60, np.arange(60))
    state.add(TruncatedBatch(8, 0, 60, np.zeros(60, np.float32), features))
    assert state.finish() is vary


def test_damaged_files_are_named(measured, tmp_path):
    copy = EntropyResult.open(shutil.copytree(measured.path, tmp_path / "copy"))
    for name in ("spectra.parquet", "features.safetensors"):
        (copy.path / name).write_bytes(b"no")
    with pytest.raises(DataError, match="spectra.parquet has changed"):
        copy.spectra()
    with pytest.raises(DataError, match="features.safetensors has changed"):
        copy.features(4)
