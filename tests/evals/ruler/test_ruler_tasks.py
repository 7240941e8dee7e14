"""The tasks of RULER: texts of the right length, with answers at the reported positions."""

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruler_reader import BYTES, paragraph, size, write_squad
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from contextwise.base.errors import ConfigError, DataError
from contextwise.data.tokenizers import learn_bpe
from contextwise_evals.answering.prompts import Encoder, Question, apply_template
from contextwise_evals.ruler.documents import DocumentQA
from contextwise_evals.ruler.questions import NOISE, Size, Task, largest_fit
from contextwise_evals.ruler.tasks import CommonWords, FrequentWords, VariableTracking, made_words
from contextwise_papers.intrinsic_entropy.needles import two_needle_question
from small import write_rows


@pytest.fixture(scope="module")
def squad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_squad(tmp_path_factory.mktemp("squad") / "squad.jsonl")


@pytest.fixture(scope="module")
def encoders(squad: Path) -> dict[str, Encoder]:
    """Bytes, and a BPE whose tokens are longer than characters."""
    learned = learn_bpe([squad.read_text(), NOISE * 9, " ".join(made_words()[i] for i in range(0, 9000, 7))], 400)
    words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    counted = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    return {"bytes": Encoder(BYTES), "bpe": Encoder(learned.tokenizer), "words": Encoder(counted)}


def tasks(squad: Path, encoder: Encoder, length: int = 900, gamma: float = 1.0, seed: int = 0) -> list[Task]:
    wanted = Size(length, gamma, encoder.count, seed)
    passages = DocumentQA(squad, wanted)
    return [passages, FrequentWords(wanted), CommonWords(wanted), VariableTracking(wanted)]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_needles_are_at_their_positions_in_the_text(squad: Path, encoders: dict[str, Encoder], kind: str) -> None:
    encoder = encoders[kind]
    for task in tasks(squad, encoder):
        for index in range(4):
            question = task.question(index)
            coded = encoder.encode(question)
            assert len(coded.body) == encoder.count(question.body) <= 900
            for (start, end), (behind, reach) in zip(question.needles, coded.needles, strict=True):
                needle = question.body[start:end]
                held = encoder.tokenizer.decode(coded.body[len(coded.body) - reach : len(coded.body) - behind])
                assert needle in held and len(held) - len(needle) <= (0 if kind == "bytes" else 12)
                for visible in (reach - 1, reach, reach + 1):
                    shown = coded.prompt(visible)
                    ids = shown[len(coded.head) : len(shown) - len(coded.tail)]
                    assert tuple(ids) == coded.body[max(0, len(coded.body) - visible) :]
                    seen = encoder.tokenizer.decode(ids)
                    if kind == "bytes":  # needles are where they are, not their like elsewhere
                        assert (seen[len(seen) - (len(question.body) - start) :] == question.body[start:]) == (
                            visible >= reach
                        )


@pytest.mark.parametrize("kind", ["bytes", "bpe", "words"])
@pytest.mark.parametrize("name", ["qa_1", "fwe", "cwe", "vt", "two needles"])
def test_no_text_is_longer_than_asked_and_a_refusal_names_what_is_enough(
    squad: Path, encoders: dict[str, Encoder], name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = encoders[kind]
    words = made_words()[::400]
    monkeypatch.setattr("contextwise_evals.ruler.tasks.made_words", lambda: words)

    def counts(length: int, seed: int, samples: int = 8) -> list[int]:
        """Tokens of the texts."""
        wanted = Size(length, 1.0, encoder.count, seed)
        if name == "two needles":
            questions = [two_needle_question(wanted, index) for index in range(samples)]
        else:
            make = {"fwe": FrequentWords, "cwe": CommonWords, "vt": VariableTracking}.get(name)
            task = DocumentQA(squad, wanted) if make is None else make(wanted)
            questions = [task.question(index) for index in range(samples)]
        return [encoder.count(question.body) for question in questions]

    for seed in (0, 11):
        with pytest.raises(ConfigError, match=r"length is 9, but .* (has|have) \d+ tokens") as refused:
            counts(9, seed)
        numbers = [int(number) for number in re.findall(r"(\d+) tokens", str(refused.value))]
        # As many as the sentence names are enough for the question, and one token fewer is not.
        if name != "qa_1":
            assert counts(numbers[-1], seed, 1) == numbers[-1:]
            with pytest.raises(ConfigError, match=f" {numbers[-1]} tokens at least"):
                counts(numbers[-1] - 1, seed, 1)
        for length in (2 * numbers[-1], 800):
            # At most one more line, word, or paragraph is missing; of cwe at the least length, one of each word.
            most = 130 if name == "qa_1" else 0.15 * length + 60 if name == "fwe" else 120
            assert all(length - most < tokens <= length for tokens in counts(length, seed)), (name, length)


@pytest.mark.parametrize("length", [300, 1000, 3000])
def test_no_paragraph_that_is_left_fits_into_a_text(tmp_path: Path, length: int) -> None:
    """Paragraphs of 20 to 210 letters, with numbers of one to two digits before them."""
    rows = [
        {
            "title": f"{i % 3}",
            "context": f"Q{i:02d}" + "x" * (17 + 5 * (i * 7 % 39)),
            "question": f"{i}?",
            "answers": {"text": ["x"]},
        }
        for i in range(39)
    ]
    path = tmp_path / "rows.jsonl"
    task = DocumentQA(write_rows(path, rows), size(length))
    for index in range(12):
        body = task.question(index).body
        used = set(re.findall(r"Q\d\d", body))
        left = [
            len(f"\n\nDocument {len(used) + 1}:\n{r['context']}") for r in rows if str(r["context"])[:3] not in used
        ]
        # A paragraph that made a text too long is not tried again: at most two characters, of a number, tell it from one.
        assert length >= len(body) > length - min(left) - 3


def test_a_question_depends_on_seed_and_index_alone(squad: Path) -> None:
    encoder = Encoder(BYTES)
    first, again = tasks(squad, encoder), tasks(squad, encoder)
    other = tasks(squad, encoder, seed=1)
    for a, b, c in zip(first, again, other, strict=True):
        for index in (3, 0, 2):  # in any order
            assert a.question(index) == b.question(index)
        assert b.question(3) == a.question(3) != a.question(1)
        assert a.question(0) != c.question(0)


def test_document_qa(squad: Path) -> None:
    task = DocumentQA(squad, size(900))
    asked = [task.question(index) for index in range(40)]
    assert len({question.ending for question in asked}) == 40  # each question once before any is again
    assert task.question(40).ending == asked[0].ending and task.question(40).body != asked[0].body
    for question in asked:
        item = int(re.findall(r"item (\d+)\?", question.ending)[0])
        ((start, end),) = question.needles
        assert question.body[start:end] == paragraph(item) and question.answers[0] in paragraph(item)
        numbers = re.findall(r"Document (\d+):\n", question.body)
        assert numbers == [str(i) for i in range(1, len(numbers) + 1)]
        shown = {int(found) for found in re.findall(r"Item (\d{4})", question.body)}
        assert len(shown) == len(numbers)  # no paragraph twice
        assert {item // 4 * 4 + i for i in range(4)} <= shown  # those of the same article come first


def test_variable_tracking() -> None:
    question = VariableTracking(size(900), example=False).question(2)
    value = re.findall(r"value (\d{5})", question.ending)[0]
    statements = [question.body[start:end] for start, end in question.needles]
    names = question.answers
    assert statements[0] == f"VAR {names[0]} = {value}" and len(set(names)) == 5
    assert statements[1:] == [f"VAR {b} = VAR {a}" for a, b in itertools.pairwise(names)]
    assert question.body.count("VAR") == 9 and question.answer_prefix.endswith(f"5 variables have the value {value}:")


def test_the_worked_examples_are_right() -> None:
    tracking = VariableTracking(size(900)).question(0)
    chain = dict(re.findall(r"VAR (\w{3}) = (?:VAR )?(\w+)", tracking.opening))
    answer = re.findall(r"have the value (\d+): (\w+(?:, \w+){4})\n", tracking.opening)
    ((value, names),) = answer
    first, *others = names.split(", ")
    assert chain[first] == value
    assert [chain[name] for name in others] == names.split(", ")[:-1]
    assert not set(names.split(", ")) & set(tracking.answers)
    common = CommonWords(size(2000)).question(0)
    listed, answered = common.opening.split("Answer:")
    counts = Counter(re.findall(r"\d+\. (\w+)", listed))
    assert set(re.findall(r"\d+\. (\w+)", answered.split("This is")[0])) == {w for w, n in counts.items() if n == 3}
    assert sorted(counts.values()) == [1] * 10 + [3] * 10


def test_more_common_words_are_more_tokens_and_the_same_common_ones(encoders: dict[str, Encoder]) -> None:
    task = CommonWords(Size(2000, 1.0, encoders["bpe"].count, 0))
    for index in range(2):
        texts = [task.body(index, count) for count in range(1, 60, 4)]
        counts = [encoders["bpe"].count(text) for text, *_ in texts]
        assert counts == sorted(counts) and len({common for *_, common in texts}) == 1
        alone = CommonWords(Size(2000, 1.0, encoders["bpe"].count, 0))
        assert alone.question(index) == task.question(index)


@pytest.mark.parametrize(("length", "times", "others"), [(4095, 6, 1), (14000, 30, 3)])
def test_common_words(length: int, times: int, others: int) -> None:
    question = CommonWords(size(length)).question(1)
    words = re.findall(r"(\d+)\. (\w+)", question.body)
    assert [int(number) for number, _ in words] == list(range(1, len(words) + 1))
    counts = Counter(word for _, word in words)
    assert {word for word, count in counts.items() if count == times} == set(question.answers)
    assert len(question.answers) == 10
    assert {count for word, count in counts.items() if word not in question.answers} == {others}
    found = Counter(question.body[start:end].split(". ")[1] for start, end in question.needles)
    assert found == dict.fromkeys(question.answers, times)


def test_frequent_words() -> None:
    question = FrequentWords(size(3000)).question(0)
    counts = Counter(question.body.split())
    assert [word for word, _ in counts.most_common(4)] == ["...", *question.answers]
    assert counts.most_common(5)[4][1] < counts[question.answers[2]]
    assert Counter(question.body[a:b] for a, b in question.needles) == {word: counts[word] for word in question.answers}


def test_made_up_words_are_all_different_and_of_equal_length() -> None:
    made = made_words()
    some = [made[i] for i in range(0, len(made), 11)]
    assert len(set(some)) == len(some) and {len(word) for word in some} == {6}
    assert len(made) == 70**3 and made[0] == "bababa" and made[-1] == "zuzuzu"


@given(limits=st.lists(st.integers(1, 5), max_size=60), room=st.integers(-1, 200), guess=st.integers(0, 80))
def test_the_largest_that_fits(limits: list[int], room: int, guess: int) -> None:
    totals = [sum(limits[:n]) for n in range(len(limits) + 1)]
    best = max((n for n, total in enumerate(totals) if total <= room), default=-1)
    assert largest_fit(lambda n: totals[n], room, guess, most=len(limits)) == best
    assert largest_fit(lambda n: 3 * n, room, guess) == (room // 3 if room >= 0 else -1)
    assert largest_fit(lambda n: 3 * n, room, guess, fewest=5) == max(4, room // 3)


def test_questions_without_an_answer_are_left_out(tmp_path: Path) -> None:
    rows = [
        {"context": "One.", "question": "What?", "answers": {"text": ["One", "one", "One"], "answer_start": [0]}},
        {"context": "Two.", "question": "Which?", "answers": {"text": [], "answer_start": []}},
    ]
    (tmp_path / "two.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = DocumentQA(tmp_path / "two.jsonl", size(20))
    assert task.paragraphs == ["One.", "Two."] and [q.answers for q in task.questions] == [("One", "one")]


ROW = {"context": "A text.", "question": "What?", "answers": {"text": ["A"]}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no question with an answer"),
        (json.dumps({**ROW, "question": None}), "q:1: question is None, but must be"),
        (json.dumps({"text": "a", "label": 1}), r"context is missing.* \(fields: 'text', 'label'\); give JSON Lines"),
        (json.dumps({**ROW, "answers": "A"}), "q:1: answers is 'A', but must be"),
        (json.dumps({**ROW, "answers": {"text": []}}), "has no question with an answer"),
        (json.dumps(ROW) + "\n{", "q:2 is not JSON"),
        ("[1]", "q entry 1 is not a JSON object"),
        (json.dumps({**ROW, "context": "\ud800"}), "q:1 holds half of a surrogate pair"),
        (json.dumps({"data": []}), r"q:1: context is missing, .* \(fields: 'data'\)"),
    ],
)  # fmt: skip
def test_a_wrong_file_of_questions_is_named_with_its_fields(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "q").write_text(content)
    with pytest.raises(DataError, match=message):
        DocumentQA(tmp_path / "q", size(20))


def test_what_is_too_short_or_too_small_is_one_sentence(
    tmp_path: Path, squad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="there is no file"):
        DocumentQA(tmp_path / "none", size(20))
    with pytest.raises(ConfigError, match="length is 50, but the shortest paragraph .* has 94 tokens"):
        DocumentQA(squad, size(50))
    with pytest.raises(DataError, match="the 40 paragraphs of .* too few for a text of 9,000"):
        DocumentQA(squad, size(9000))
    with pytest.raises(ConfigError, match=r"length is 300, but a text of vt has \d+ tokens at least"):
        VariableTracking(size(300))
    with pytest.raises(ConfigError, match=r"length is 300, but a text of cwe has \d+ tokens at least"):
        CommonWords(size(300))
    with pytest.raises(ConfigError, match=r"length is 60, but a text of fwe has \d+ tokens at least"):
        FrequentWords(size(60))
    monkeypatch.setattr("contextwise_evals.ruler.tasks.made_words", lambda: [f"w{i}" for i in range(40)])
    with pytest.raises(ConfigError, match="length is 2000, but the 40 words of cwe are too few to fill it"):
        CommonWords(size(2000)).question(0)


CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|me|>{% endif %}"
)


def test_a_chat_template_surrounds_the_text_at_every_visible_context() -> None:
    tokenizer = learn_bpe([NOISE], 300).tokenizer
    tokenizer.chat_template = CHAT
    encoder = Encoder(tokenizer, chat=True)
    question = Question("Read.\n", "one two three four", "\nWhat?\n", "Answer:", ("two",), ((4, 7),))
    coded = encoder.encode(question)
    assert tokenizer.decode(coded.prompt(10**6)) == "<|user|>Read.\none two three four\nWhat?\n<|me|>Answer:"
    for visible in (1, 3):
        shown = tokenizer.decode(coded.body[-visible:])
        assert tokenizer.decode(coded.prompt(visible)) == f"<|user|>Read.\n{shown}\nWhat?\n<|me|>Answer:"
    with pytest.raises(ConfigError, match="chat is given, but the model has no chat template"):
        Encoder(BYTES, chat=True)
    tokenizer.chat_template = "{{ messages[0].role }}"
    with pytest.raises(ConfigError, match="leaves the question out"):
        encoder.encode(question)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{% for %}",
        "",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ 'x'.__class__ }}",
        "{{ '%d' % 'x' }}",
        "hello",
        "{{ messages[0].content }}{{ 'a' * 10**7 }}",
    ],
)
def test_a_template_that_fails_is_refused(template: str) -> None:
    tokenizer = learn_bpe([NOISE], 300).tokenizer
    with pytest.raises(ConfigError, match="the model's chat template refuses the conversation .*; leave it out"):
        apply_template(
            tokenizer, [{"role": "user", "content": "a"}], "leave it out", chat_template=template, tokenize=False
        )


def test_special_tokens_written_out_in_a_text_are_text() -> None:
    question = Question("", "a<|endoftext|>b", "?", "", ("a",), ((0, 1),))
    assert BYTES.eos_token_id not in Encoder(BYTES).encode(question).prompt(99)
