"""The page of a run whose evaluations are sentence by sentence."""

from contextwise.data import Corpus, prepare_corpus
from contextwise.reports.runs import report_page
from contextwise.training import train
from cue_runs import Runs, recipe, write_articles
from measured import evaluate_sentences


def test_an_evaluation_by_sentence_is_said_to_be_one(tmp_path):
    sources = [
        f"{name}={write_articles(tmp_path / f'{name}.jsonl', 12, i)}" for i, name in enumerate(("train", "test"))
    ]
    corpus = prepare_corpus(sources, "train:300", tmp_path / "corpus").path
    lm = Runs(tmp_path, corpus, "").sentence_models()[0]
    run = train(recipe(lm))
    evaluate_sentences(run.path, Corpus.open(corpus, split="test"))
    report_page([run]).write(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "tokens, single sentences." in page
    assert "windows of" not in page
