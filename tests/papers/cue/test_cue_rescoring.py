"""Lists of candidates: log-probabilities by hand and as the scoring pass has them, ranks, weights, and files of lists."""

import gzip
import json
import math

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from contextwise.base.errors import CheckpointError, DataError
from contextwise.data import Corpus
from contextwise.data.tokenizers import byte_tokenizer
from contextwise.evaluation.kernel import Subject, measure
from contextwise_papers.cue import CueForCausalLM
from contextwise_papers.cue.contexts import ContextTexts
from contextwise_papers.cue.rescoring import Rescore
from contextwise_papers.cue.sentences.running import Sentences
from measured import evaluate_sentences
from sentence_models import cue_model, make_corpus, sentence_model, write_text_encoder
from small import save_model, write_rows

BYTES = byte_tokenizer().tokenizer
CONTEXTS = {
    "title": "Oil price rises",
    "date": "1987-03-04",
    "topics": ["oil", "trade"],
    "previous_sentence": "It fell.",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cue_rescoring")
    make_corpus(folder)
    save_model(folder / "cue", cue_model(write_text_encoder(folder / "bert")))
    save_model(folder / "lm", sentence_model())
    return folder


@pytest.fixture(scope="module")
def cue(folder):
    return CueForCausalLM.from_pretrained(folder / "cue").eval()


def unigram_model(probabilities):
    """A model that gives each token the same probability everywhere: its states are all one vector."""
    config = GPT2Config(
        vocab_size=257, n_positions=16, n_embd=8, n_layer=1, n_head=1, tie_word_embeddings=False, eos_token_id=256
    )
    model = GPT2LMHeadModel(config).eval()
    log_p = torch.full((257,), -40.0)
    for token, probability in probabilities.items():
        log_p[token] = math.log(probability)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.transformer.ln_f.bias[0] = 1.0
        model.lm_head.weight[:, 0] = log_p
    return model


@pytest.fixture
def rescore(tmp_path):
    """Ranks the candidates of one list."""

    def rank(model, candidates, contexts=None, weight=1.0):
        file = write_rows(tmp_path / "list.jsonl", [{"candidates": candidates, "contexts": contexts}])
        subject = Subject(model, tokenizer=BYTES, device="cpu")
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        [row] = measure(subject, Rescore(file=file, weight=weight), out=out).lists
        return row["ranked"]

    return rank


def texts_of(ranked):
    return [one["text"] for one in ranked]


def test_log_probabilities_worked_by_hand(rescore):
    model = unigram_model({ord("a"): 0.5, ord("b"): 0.25, 256: 0.25})
    ranked = rescore(model, ["bb", "a", "ab"])
    assert texts_of(ranked) == ["a", "ab", "bb"] and [one["rank"] for one in ranked] == [1, 2, 3]
    assert [one["index"] for one in ranked] == [1, 2, 0] and [one["tokens"] for one in ranked] == [1, 2, 2]
    want = [0.5 * 0.25, 0.5 * 0.25 * 0.25, 0.25**3]
    for one, probability in zip(ranked, want, strict=True):
        assert one["log_probability"] == pytest.approx(math.log(probability), abs=1e-5) == one["total"]
        assert one["per_token"] == pytest.approx(math.log(probability) / (one["tokens"] + 1), abs=1e-5)


def test_a_special_token_that_a_candidate_spells_is_text(rescore):
    """As one token it would be the end of a sentence within the sentence."""
    spelled = BYTES.eos_token
    (ranked,) = rescore(unigram_model({256: 0.25}), [spelled])
    assert ranked["tokens"] == len(spelled.encode()) > 1


def test_equal_candidates_stay_in_their_order(rescore):
    model = unigram_model({ord("a"): 0.25, ord("b"): 0.25, ord("c"): 0.25, 256: 0.25})
    assert texts_of(rescore(model, ["cb", "ab", "a", "ba"])) == ["a", "cb", "ab", "ba"]


def test_given_scores_are_mixed_in_by_weight(rescore):
    model = unigram_model({ord("a"): 0.5, ord("b"): 0.25, 256: 0.25})
    candidates = [{"text": "a", "score": -8}, {"text": "b", "score": -1.0}]
    assert texts_of(rescore(model, candidates)) == ["a", "b"]
    mixed = rescore(model, candidates, weight=0.6)
    assert texts_of(mixed) == ["b", "a"]
    assert mixed[0]["total"] == pytest.approx(0.6 * math.log(1 / 16) - 0.4, abs=1e-5)
    assert mixed[1]["total"] == pytest.approx(0.6 * math.log(1 / 8) - 3.2, abs=1e-5)
    assert [one["total"] for one in rescore(model, candidates, weight=0.0)] == [-1.0, -8.0]
    with pytest.raises(DataError, match="candidate 2 has no score, which a weight of 0.5 needs"):
        rescore(model, [candidates[0], "b"], weight=0.5)


def test_log_probabilities_are_those_of_the_scoring_pass(folder, cue, rescore, monkeypatch):
    monkeypatch.chdir(folder)
    corpus = Corpus.open("corpus")
    found = evaluate_sentences("cue", corpus)
    sentences = Sentences(corpus)
    texts = ContextTexts(sentences.index, ["title", "date", "topics", "previous_sentence"])
    nats = sentences.rows.sums(found.tokens()["nats"].to_numpy())
    for number in range(0, len(sentences), 5):
        text = BYTES.decode(sentences.rows.tokens[number])
        contexts = dict(zip(texts.types, texts.of(number), strict=True))
        ranked = rescore(cue, [text, "other"], contexts)
        own = next(one for one in ranked if one["index"] == 0)
        assert -own["log_probability"] == pytest.approx(nats[number], rel=1e-5)


def test_contexts_count_in_any_order(cue, rescore):
    candidates = ["Oil rises.", "Grain falls."]
    given = rescore(cue, candidates, CONTEXTS)
    assert rescore(cue, candidates, dict(reversed(CONTEXTS.items()))) == given
    alone = rescore(cue, candidates)
    assert [one["log_probability"] for one in given] != pytest.approx(
        [one["log_probability"] for one in alone], abs=1e-2
    )


def test_what_a_model_does_not_take_is_refused(cue, rescore):
    with pytest.raises(DataError, match=r"the context 'titel' is unknown to the model; did you mean 'title'\?"):
        rescore(cue, ["a"], {"titel": "x"})
    with pytest.raises(DataError, match="the context 'title' is an object"):
        rescore(cue, ["a"], {"title": {"main": "x"}})
    small = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=8, n_layer=1, n_head=1, eos_token_id=0, bos_token_id=0))
    with pytest.raises(CheckpointError, match="the tokenizer makes the token 122, but the model knows only 100"):
        rescore(small, ["az"])


def rescored(source, file, out):
    return measure(source, Rescore(file=file), out=out, device="cpu")


def test_a_file_of_lists_is_ranked_as_its_lists_are(folder, cue, rescore, tmp_path):
    rows = [
        {"id": "one", "candidates": ["Oil rises.", {"text": "Oil falls.", "score": -2}], "contexts": CONTEXTS},
        {"candidates": ["Grain.", "Bank."]},
        {"id": 3, "candidates": ["It said."], "contexts": {"title": None}},
    ]
    with gzip.open(tmp_path / "lists.jsonl.gz", "wt") as file:
        file.write("\n".join(json.dumps(row) for row in rows) + "\n\n")
    result = rescored(folder / "cue", tmp_path / "lists.jsonl.gz", tmp_path / "out")
    assert [row.get("id") for row in result.lists] == ["one", None, 3]
    for row, written in zip(rows, result.lists, strict=True):
        want = rescore(cue, row["candidates"], row.get("contexts"))
        assert [(one["text"], one["rank"], one.get("score")) for one in written["ranked"]] == [
            (one["text"], one["rank"], one.get("score")) for one in want
        ]
        assert [one["total"] for one in written["ranked"]] == pytest.approx([one["total"] for one in want], abs=1e-4)
    summary = result.summary
    assert (summary["lists"], summary["candidates"], summary["with_contexts"]) == (3, 5, 2)
    assert [best["id"] for best in summary["best"]] == ["one", 2, 3]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", r":2 is not a JSON object"),
        ("{", r":2 is not JSON"),
        ('{"candidate": ["a"]}', r":2: candidates is missing \(fields: 'candidate'\); give the texts to rank"),
        ('{"candidates": "a"}', r":2: candidates is 'a', but must be a list"),
        ('{"candidates": []}', r":2: candidates is \[\], but must have at least 1 value"),
        ('{"candidates": ["a", 5]}', r":2: candidates.1 is 5, but must be .*or objects with 'text' and 'score'"),
        ('{"candidates": [{"score": 1}]}', r":2: candidates.0.text is missing"),
        ('{"candidates": [""]}', r":2: candidate 1 has no tokens; remove it"),
        ('{"candidates": [{"text": "a", "score": "b"}]}', r":2: candidates.0.score is 'b', but must be a number"),
        ('{"candidates": [{"text": "a", "score": NaN}]}', r":2: candidates.0.score is nan, but must be a finite number"),
        ('{"candidates": ["a"], "contexts": ["b"]}', r":2: contexts is .* but must be a mapping"),
        ('{"candidates": ["a"], "contexts": {"dat": 1}}', r":2: the context 'dat' is unknown .*did you mean 'date'\?"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named(folder, tmp_path, line, message):
    (tmp_path / "lists.jsonl").write_text('{"candidates": ["a"]}\n' + line + "\n")
    with pytest.raises(DataError, match=message):
        rescored(folder / "cue", tmp_path / "lists.jsonl", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_empty_file_is_refused(folder, tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="is empty; give one list of candidates a line"):
        rescored(folder / "lm", tmp_path / "empty.jsonl", tmp_path / "out")
