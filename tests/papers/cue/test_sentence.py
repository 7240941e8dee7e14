"""The objective of single sentences, and the texts of their contexts."""

import itertools

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from contextwise.base.errors import ConfigError, DataError
from contextwise.data import Corpus, prepare_corpus
from contextwise.objectives import NO_LOSS, Cut, Vocabulary, build_objective
from contextwise_papers.cue.contexts import ContextTexts
from contextwise_papers.cue.settings import PREVIOUS
from contextwise_papers.objectives.text import SentenceIndex
from objective_corpora import of_texts, same, vocabulary
from small import Memory, write_rows

pytest.importorskip("sentencex", reason="needs contextwise[sentences]")

END = 256
TEXTS = ["One.  Two two.\n  Three!", " \n ", "Alone", "", "Four. Five."]
ARTICLES = [
    {"text": "Rain fell. It\n   stopped. Why?", "date": "1985-05-29", "topics": ["rain", "sky"], "author": None},
    {"text": "Rain fell. A second article.", "date": "1985-05-30", "topics": [], "author": "Ann  Lee"},
    {"text": "One sentence", "date": "1985-05-30", "topics": ["rain"], "author": ""},
]


def examples_of(texts, letters, context=32, **settings):
    objective = build_objective("sentence", **settings)
    return objective.examples(of_texts(texts, letters), Cut(context), 0, vocabulary(objective, letters))


def read(examples, index):
    """The inputs and labels of an example without its padding."""
    example = examples.example(0, index)
    ids, labels = example["input_ids"].tolist(), example["labels"].tolist()
    n = sum(label != NO_LOSS for label in labels)
    assert labels[n:] == [NO_LOSS] * (len(labels) - n) and ids[n:] == [examples.end_of_text] * (len(ids) - n)
    return ids[:n], labels[:n]


@pytest.fixture
def prepare(tmp_path):
    """Articles as a prepared corpus of bytes."""

    def to_corpus(articles=ARTICLES):
        path = tmp_path / "articles.jsonl"
        write_rows(path, articles)
        return prepare_corpus(path, "bytes", tmp_path / "corpus", validation=0)

    return to_corpus


def contexts_of(corpus, *columns, previous=False):
    index = SentenceIndex(corpus, corpus.tokenizer(), "en")
    return ContextTexts(index, [*columns, *([PREVIOUS] if previous else [])])


def test_each_sentence_is_an_example_with_its_end(letters):
    examples = examples_of(TEXTS, letters)
    assert examples.count(0) == examples.count(7) == 6
    sentences = ["One.  ", "Two two.\n  ", "Three!", "Alone", "Four. ", "Five."]
    for index, sentence in enumerate(sentences):
        ids = list(sentence.encode())
        assert read(examples, index) == ([END, *ids], [*ids, END])
        assert examples.example(0, index)["window"] == index
        assert same(examples.example(0, index), examples.example(3, index))
    assert examples.cut == 0


@pytest.mark.long
def test_the_tokens_of_real_documents_are_targets_once_each(corpus, known):
    objective = build_objective("sentence")
    examples = objective.examples(corpus, Cut(2**13), 0, known(objective))
    index = examples.sentences
    assert len(index) == len(index.lengths) == index.starts[-1] and index.lengths.min() >= 1
    number = 0
    for document in range(12):
        labels = []
        for sentence in range(len(index.of(document)) - 1):
            assert index.place(number) == (document, sentence)
            tokens = index.read(document, sentence, sentence + 1)
            assert len(tokens) == index.lengths[number]
            labels += read(examples, number)[1][:-1]
            number += 1
        assert labels == corpus.document(document).tolist()


def test_long_sentences_are_cut_and_counted(letters, capsys):
    examples = examples_of(["abcd. abcdefgh. abc."], letters, context=6)
    assert [len(read(examples, i)[1]) for i in range(3)] == [6, 6, 5]
    assert read(examples, 1) == ([END, *b"abcde"], [*b"abcdef"])  # its end is not seen, so none is predicted
    assert examples.cut == 2
    assert "2 of 3 sentences of the split 'train' have more than 5 tokens" in capsys.readouterr().err
    # A sentence that fills the window to its last token but has no room for its end is cut, too.
    assert examples_of(["abcd"], letters, context=4).cut == 1
    assert examples_of(["abcd"], letters, context=5).cut == 0


def test_a_stream_holds_every_sentence_once_an_epoch(letters):
    objective = build_objective("sentence")
    words = vocabulary(objective, letters)
    stream = objective.stream(of_texts(TEXTS, letters), Cut(16), 3, words, 18)
    epochs = [[int(stream[i]["window"]) for i in range(e, e + 6)] for e in (0, 6, 12)]
    assert all(sorted(epoch) == list(range(6)) for epoch in epochs) and len(set(map(tuple, epochs))) > 1


def test_no_sentence_at_all_is_refused(letters):
    with pytest.raises(DataError, match="has no sentence: all 2 documents are empty or white space"):
        examples_of(["  \n", ""], letters)
    with pytest.raises(DataError, match="has no sentence: all 0 documents"):
        examples_of([], letters)


def test_a_corpus_without_a_tokenizer_is_refused():
    with pytest.raises(ConfigError, match="sentences need a tokenizer"):
        build_objective("sentence").examples(Memory([[1, 2]]), Cut(8), 0, Vocabulary(None, 99))
    with pytest.raises(ConfigError, match="needs an end-of-text token"):
        build_objective("sentence").examples(Memory([[1, 2]]), Cut(8), 0, Vocabulary(None, None))


def test_contexts_in_their_order_with_the_sentence_before(prepare):
    contexts = contexts_of(prepare(), "topics", "date", "author", previous=True)
    assert contexts.types == ["topics", "date", "author", "previous_sentence"] and len(contexts) == 6
    first = ["rain, sky", "Wednesday 29 May 1985", None]
    assert [contexts.of(i) for i in range(3)] == [
        [*first, None], [*first, "Rain fell."], [*first, "It stopped."],
    ]  # fmt: skip
    second = [None, "Thursday 30 May 1985", "Ann Lee"]
    assert [contexts.of(i) for i in (3, 4)] == [[*second, None], [*second, "Rain fell."]]
    assert contexts.of(5) == ["rain", "Thursday 30 May 1985", None, None]
    assert contexts.missing() == {"topics": 2 / 6, "date": 0.0, "author": 4 / 6, "previous_sentence": 3 / 6}
    with pytest.raises(IndexError):
        contexts.of(6)


def test_fields_of_objects_by_a_dotted_name(prepare):
    articles = [
        {"text": f"Text {i}.", "meta": {"title": f"title {i}", "deep": {"n": i}}, "meta.n": i} for i in range(3)
    ]
    corpus = prepare(articles)
    assert contexts_of(corpus, "meta.title", "meta.deep.n", "meta.n").of(1) == ["title 1", "1", "1"]
    with pytest.raises(DataError, match=r"'meta' of .* holds objects.*name one of their fields, meta\..* for one"):
        contexts_of(corpus, "meta")
    with pytest.raises(DataError, match="'meta.titel' of .* does not exist: meta has no field 'titel'"):
        contexts_of(corpus, "meta.titel")


def test_columns_that_cannot_be_contexts_are_refused(prepare):
    articles = [
        {**article, "mixed": i if i % 2 else [i], "nothing": None, "amount": i or 0.5}
        for i, article in enumerate(ARTICLES)
    ]
    corpus = prepare(articles)
    with pytest.raises(DataError, match="no metadata column 'topic'; did you mean 'topics'"):
        contexts_of(corpus, "topic")
    with pytest.raises(DataError, match="values of the column 'mixed' of .* have no common type"):
        contexts_of(corpus, "mixed")
    with pytest.raises(DataError, match="no sentence of the split 'train' of .* has any of the contexts nothing;"):
        contexts_of(corpus, "nothing")
    assert contexts_of(corpus, "nothing", previous=True).of(1) == [None, "Rain fell."]
    assert contexts_of(corpus, "amount").of(0) == ["0.5"]  # whole numbers and others are of one type


def test_documents_without_a_second_sentence_have_no_previous_one(prepare):
    corpus = prepare([{"text": "One only."}, {"text": "Another one."}])
    with pytest.raises(DataError, match="has any of the contexts previous_sentence; all are missing"):
        contexts_of(corpus, previous=True)


def test_no_sentence_is_white_space_alone(corpus, bpe):
    index = SentenceIndex(corpus, corpus.tokenizer(), "en")
    for number in range(len(index)):
        document, sentence = index.place(number)
        assert bpe.tokenizer.decode(index.read(document, sentence, sentence + 1)).strip(), number


def test_white_space_between_sentences_belongs_to_the_one_before(letters):
    examples = examples_of(["  A.\n\n   B. "], letters)
    parts = [bytes(read(examples, i)[1][:-1]).decode() for i in range(examples.count(0))]
    assert parts == ["  A.\n\n   ", "B. "]
    index = examples.sentences
    assert all(len(index.read(0, a, b)) for a, b in itertools.pairwise(range(3)))


def test_opening_a_corpus_by_split_keeps_its_numbering_apart(tmp_path):
    for name, texts in (("a", ["A one. A two."]), ("b", ["B one.", "B two. B three."])):
        write_rows(tmp_path / f"{name}.jsonl", ({"text": t} for t in texts))
    sources = [f"train={tmp_path / 'a.jsonl'}", f"test={tmp_path / 'b.jsonl'}"]
    prepare_corpus(sources, "bytes", tmp_path / "corpus")
    contexts = contexts_of(Corpus.open(tmp_path / "corpus", "test"), previous=True)
    assert [contexts.of(i) for i in range(3)] == [[None], [None], ["B two."]]


def test_numbers_of_tokenizers_that_forget_white_space_stay_whole():
    words = ["[UNK]", "rates", "rose", "to", "8", ".", "65", "pct", "then", "1", "000", ",", "they", "fell"]
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    ids = tokenizer("rates rose to 8.65 pct. then they fell to 1,000. then rose").input_ids
    index = SentenceIndex(Memory([ids]), tokenizer, "en")
    parts = [tokenizer.decode(index.read(0, i, i + 1)) for i in range(len(index))]
    assert parts == ["rates rose to 8. 65 pct.", "then they fell to 1, 000.", "then rose"]
