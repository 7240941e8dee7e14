"""Sources of texts: records, and errors."""

import ast
import gzip
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import Unigram, WordLevel
from tokenizers.pre_tokenizers import Metaspace, Whitespace
from transformers import PreTrainedTokenizerFast

from contextwise.base.errors import ConfigError, DataError
from contextwise.data import Corpus, prepare_corpus, sources
from contextwise.data.sources import BadRecord, Document, Source, open_source, source_digest
from contextwise.data.sources import tables as module
from contextwise.data.sources.stdlib import StandardLibrary, docstring_summary, stdlib_files
from small import write_documents


def read(source: str | Path, text_field: str = "text") -> list[Any]:
    return list(open_source(source).records(text_field))


def test_json_lines_are_split_on_newlines_alone(write_jsonl: Callable[..., Path]) -> None:
    texts = ["one\u2028two\u2029three\x85four\x0b\x0c\x1c", "line\nline\r\nline", "déjà 🙂"]
    path = write_jsonl({"text": text, "n": i} for i, text in enumerate(texts))
    assert read(path) == [Document(text, {"n": i}) for i, text in enumerate(texts)]


def test_gzip_byte_order_mark_windows_lines_and_blank_lines(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf{"text": "a"}\r\n\r\n{"text": "b"}'
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(content))
    wanted = [Document("a", {}), Document("b", {})]
    assert read(tmp_path / "a.jsonl") == read(tmp_path / "b.jsonl.gz") == wanted
    assert read(tmp_path) == read(str(tmp_path / "*.jsonl*")) == wanted * 2


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "the line is not JSON (Expecting property name"),
        (b'{"text": "a", "text": "b"}', "the line is not JSON (it has the key 'text' twice"),
        (b'{"text": "a", "m": {"n": 1, "n": 2}}', "the line is not JSON (it has the key 'n' twice"),
        (b"[1]", "the line is not a JSON object but a list"),
        (b'{"text": "a"} {}', "the line holds more than one JSON value, the second from column 15"),
        (b'"text"', "the line is not a JSON object but a string"),
        (b"7", "the line is not a JSON object but a number"),
        (b'{"body": "a", "id": 3}', "there is no field 'text' (fields: 'body', 'id'; text_field names another)"),
        (b'{"text": null}', "the field 'text' is not a string but null"),
        (b'{"text": ["a"]}', "the field 'text' is not a string but a list"),
        (b'{"text": "\xff"}', "the line is not UTF-8"),
        (b'{"text": "\\ud800"}', "a string holds half of a surrogate pair, which is no text"),
        (b'{"text": "a", "title": {"x": ["\\udfff"]}}', "a string holds half of a surrogate pair, which is no text"),
        (b"[" * 100_000, "the line is not JSON"),
        (b'{"text": "a", "n": ' + b"9" * 5000 + b"}", "the line is not JSON"),
    ],
)
def test_bad_lines_say_where_and_why(tmp_path: Path, line: bytes, why: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + line + b'\n{"text": "\\ud83d\\ude42"}\n')
    first, bad, last = read(path)
    assert (first, last) == (Document("fine", {}), Document("🙂", {}))
    assert isinstance(bad, BadRecord) and bad.where == f"{path}:2" and bad.why.startswith(why)


def test_a_list_in_each_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\n[{"text": "a"}]\n[{"text": "b"}]\n')
    assert read(path) == [
        BadRecord(str(path), "the file holds more than one JSON value, the second from line 3, column 1")
    ]


def test_another_text_field(write_jsonl: Callable[..., Path]) -> None:
    path = write_jsonl([{"text": 1, "body": "b"}])
    assert read(path, "body") == [Document("b", {"text": 1})]


def test_text_files_of_a_folder_are_documents_with_paths(tmp_path: Path) -> None:
    (tmp_path / "sub" / ".hidden").mkdir(parents=True)
    (tmp_path / "b.txt").write_bytes("\ufeffzwei\r\n".encode())
    (tmp_path / "sub" / "a.md").write_text("eins")
    (tmp_path / "sub" / ".hidden" / "c.txt").write_text("not read")
    (tmp_path / ".d.txt").write_text("not read")
    (tmp_path / "z.txt.gz").write_bytes(gzip.compress(b"drei"))
    assert read(tmp_path) == [
        Document("zwei\r\n", {"path": "b.txt"}),
        Document("eins", {"path": "sub/a.md"}),
        Document("drei", {"path": "z.txt.gz"}),
    ]
    assert read(tmp_path / "b.txt") == [Document("zwei\r\n", {"path": "b.txt"})]
    assert [record.metadata["path"] for record in read(str(tmp_path / "**" / "*.md"))] == ["a.md"]


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"abc\x89PNG")
    with pytest.raises(
        DataError, match=r"picture.png is not UTF-8 text \(byte 3\); convert it, as with iconv -f LATIN1 -t"
    ):
        read(tmp_path)
    (tmp_path / "16.txt").write_text("Wörter", encoding="utf-16")
    other, picture = read(tmp_path)
    assert other.why == "the file is not UTF-8 text (byte 0): convert it, as with iconv -f UTF-16 -t UTF-8"
    assert picture.where == str(tmp_path / "picture.png") and "LATIN1" in picture.why
    (tmp_path / "16.txt").unlink()
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
    with pytest.raises(DataError, match="it holds zero bytes, so it is no text in another encoding either"):
        read(tmp_path)
    (tmp_path / "paper.pdf").write_bytes(b"%PDF")
    first, _ = read(tmp_path)
    assert first.where == str(tmp_path / "paper.pdf") and first.why.startswith("the file is a PDF: write its text into")
    (tmp_path / "paper.pdf").rename(tmp_path / "renamed.txt")
    (tmp_path / "renamed.txt").write_bytes(b"%PDF-1.7\n%\xe2\xe3")
    with pytest.raises(DataError, match=r"not UTF-8 text \(byte 10\); it is a PDF: write its text"):
        read(tmp_path / "renamed.txt")


@pytest.mark.parametrize(
    "name", ["x.jsonl.zst", "x.html", "x.htm.gz", "x.xml", "X.IPYNB", "x.pdf", "x.docx", "x.tar.gz", "x.csv.xz"]
)
def test_what_other_programs_read_is_not_taken_for_text(tmp_path: Path, name: str) -> None:
    content = b"<p>hello</p>"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    readable = any(part in name.lower() for part in ("htm", "xml", "ipynb"))
    end = r"name it \.txt to take it as it is$" if readable else r"\.jsonl file$"
    with pytest.raises(DataError, match=f"{name} is .*{end}"):  # nothing else to read
        read(tmp_path / name)
    (tmp_path / name).rename(tmp_path / "x.txt")
    (tmp_path / "x.txt").write_bytes(content)
    assert read(tmp_path / "x.txt") == [Document("<p>hello</p>", {"path": "x.txt"})]


def test_tables_in_csv_and_tsv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes('\ufefftext,n\r\n"one, with ""quotes""\nand a line",1\r\n\r\nzwei,2\r\n'.encode())
    wanted = [Document('one, with "quotes"\nand a line', {"n": "1"}), Document("zwei", {"n": "2"})]
    assert read(tmp_path / "a.csv") == wanted
    (tmp_path / "header.csv").write_text('n,"the\ntext"\n1,fünf\n')
    assert read(tmp_path / "header.csv", "the\ntext") == [Document("fünf", {"n": "1"})]
    (tmp_path / "b.csv").write_text("n;text\n1;drei\n")
    (tmp_path / "c.tsv.gz").write_bytes(gzip.compress(b"n\ttext\n1\tvier, fuenf\n"))
    assert read(tmp_path / "b.csv") == [Document("drei", {"n": "1"})]
    assert read(tmp_path / "c.tsv.gz") == [Document("vier, fuenf", {"n": "1"})]
    assert read(str(tmp_path / "[ab].csv")) == [*wanted, Document("drei", {"n": "1"})]
    with pytest.raises(
        DataError, match=r"a\.csv has no column 'body'; its columns are 'text', 'n': set text_field to one"
    ):
        read(tmp_path / "a.csv", "body")


def test_bad_rows_of_a_table_say_where_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,n\na,1\nb\n"c"x,3\nd,4\n')
    records = read(path)
    assert [record.text for record in records if isinstance(record, Document)] == ["a", "d"]
    short, broken = (record for record in records if isinstance(record, BadRecord))
    assert short == BadRecord(f"{path} row 3", "the row has 1 cells, but there are 2 columns")
    assert broken.where == f"{path} row 4" and broken.why.startswith("the row is not CSV")
    rows = [f"text {number},{number}\n".encode() for number in range(3000)]
    rows[2000] = b"f\xfcnf,5\n"  # in Latin-1
    path.write_bytes(b"text,n\n" + b"".join(rows))
    records = read(path)
    assert len(records) == 3000
    assert [record for record in records if isinstance(record, BadRecord)] == [
        BadRecord(f"{path} row 2,002", "the row is not UTF-8 text")
    ]
    path.write_bytes("text,n\na,1\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"a\.csv is not UTF-8 text \(in its first row\); convert it, as with iconv"):
        read(path)


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ('n\ttext\n1\t"quoted\nin two lines"\n2\tplain\n', ["quoted\nin two lines", "plain"]),
        ('n\ttext\n1\t"with a\ttab, ""she"" said"\n2\tplain\n', ['with a\ttab, "she" said', "plain"]),
        ('text\n"one cell\na row"\nplain\n', ["one cell\na row", "plain"]),
        ('n\ttext\n1\t"Yes", she said\n2\tplain\n', ['"Yes", she said', "plain"]),
        ('n\ttext\n1\t"Yes, she\n2\tsaid\n3\tand left"\n', ['"Yes, she', "said", 'and left"']),
    ],
)
def test_quotes_of_a_tsv_are_around_cells_or_in_texts(tmp_path: Path, content: str, texts: list[str]) -> None:
    """Spreadsheets and pandas quote cells; other programs write texts as they are, of which some begin with a quote."""
    (tmp_path / "A.TSV").write_text(content)
    assert [record.text for record in read(tmp_path / "A.TSV") if isinstance(record, Document)] == texts


@pytest.mark.parametrize("bad", ['8\t"x" y\n', '9\t"cut'])
@pytest.mark.parametrize("lines", [1, 2])
def test_a_bad_row_of_a_tsv_with_quoted_cells_is_one_bad_row(tmp_path: Path, bad: str, lines: int) -> None:
    said = 'He said ""no""' + "\nand left" * (lines - 1)
    (tmp_path / "a.tsv").write_text("n\ttext\n" + "".join(f'{number}\t"{said}"\n' for number in range(20)) + bad)
    records = read(tmp_path / "a.tsv")
    assert sum(isinstance(record, BadRecord) for record in records) == 1
    assert {record.text for record in records if isinstance(record, Document)} == {said.replace('""', '"')}


def test_texts_beside_a_table_are_said_not_to_be_read(tmp_path: Path, capsys) -> None:
    (tmp_path / "index.csv").write_text("text\nin the table\n")
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text("beside it")
    assert [record.text for record in read(tmp_path)] == ["in the table"]
    said = " ".join(capsys.readouterr().err.split())
    assert "the tables are read (index.csv), and not the 2 other files" in said


def test_suffixes_are_read_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "B.JSONL.GZ").write_bytes(gzip.compress(b'{"text": "packed"}\n'))
    assert read(tmp_path / "B.JSONL.GZ") == [Document("packed", {})]
    with pytest.raises(DataError, match=r"there is no file or folder .*NOTES\.TXT"):
        read(tmp_path / "NOTES.TXT")


def test_a_long_text_is_cut_at_its_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_bytes(b"one\nline\r\n\r\n\r\n two\n \t\nthree\n\n")
    where = {"path": "book.txt"}
    wanted = [Document("one\nline", where), Document(" two", where), Document("three", where)]
    assert read(f"paragraphs:{tmp_path / 'book.txt'}") == wanted == read(f"paragraphs:{tmp_path}")
    assert open_source(f"paragraphs:{tmp_path}").description()["kind"] == "paragraphs"


@pytest.fixture
def table() -> pa.Table:
    return pa.table(
        {"text": [f"row {i}" for i in range(150)], "n": range(150), "day": pa.array([0] * 150, pa.date32())}
    )


def test_a_corpus_is_prepared_with_another_tokenizer(tmp_path: Path) -> None:
    texts = write_documents(tmp_path / "texts.jsonl", 40)
    first = prepare_corpus(texts, "train:300", tmp_path / "first", validation=0.3).path
    again = prepare_corpus(f"corpus:{first}", "bytes", tmp_path / "again").path
    alone = prepare_corpus(f"corpus:{first}/validation", "bytes", tmp_path / "alone", validation=0.0).path
    direct = prepare_corpus(texts, "bytes", tmp_path / "direct", validation=0.3).path
    for corpus, split, theirs in ((again, "train", None), (again, "validation", None), (alone, "train", "validation")):
        made, wanted = Corpus.open(corpus, split=split), Corpus.open(direct, split=theirs or split)
        assert made.fingerprint == wanted.fingerprint
        assert made.column("title") == wanted.column("title") and made.bytes.tolist() == wanted.bytes.tolist()
    assert source_digest(f"corpus:{first}/train") != source_digest(f"corpus:{first}/validation")
    assert source_digest(f"corpus:{first}/train") != source_digest(f"corpus:{again}/train")
    alias = tmp_path / "first" / ".." / "first"
    assert source_digest(f"corpus:{first}/train") == source_digest(f"corpus:{alias}/train")
    assert "source_document_hash" not in Corpus.open(again).columns
    with pytest.raises(DataError, match="lie one in the other"):
        prepare_corpus(f"corpus:{first}/validation", "bytes", first, overwrite=True)
    assert len(Corpus.open(first, split="train")) == len(Corpus.open(direct, split="train"))
    with pytest.raises(DataError, match=r"first is a whole corpus.*such as corpus:.*first/train"):
        prepare_corpus([f"corpus:{first}", f"corpus:{again}"], "bytes", tmp_path / "x")
    with pytest.raises(DataError, match=r"there is no corpus at .*/frst; did you mean .*/first\?"):
        prepare_corpus(f"corpus:{tmp_path}/frst", "bytes", tmp_path / "x")
    with pytest.raises(DataError, match="the corpus .*first has no split 'trian'"):
        prepare_corpus(f"corpus:{first}/trian", "bytes", tmp_path / "x")
    with pytest.raises(DataError, match="there is no corpus at .*no/train"):
        prepare_corpus(f"corpus:{tmp_path}/no/train", "bytes", tmp_path / "x")


def test_spaces_and_splits_of_a_corpus_stay(tmp_path: Path) -> None:
    """SentencePiece's decoder drops the space that a text begins with; no split need be called train."""
    (tmp_path / "a.jsonl").write_text('{"text": " one two"}\n{"text": "one two two"}\n')
    pieces = Tokenizer(Unigram([("</s>", 0.0), ("▁one", -1.0), ("▁two", -1.0), ("▁", -3.0)], unk_id=0))
    pieces.pre_tokenizer, pieces.decoder = Metaspace(), decoders.Metaspace()
    PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="</s>").save_pretrained(tmp_path / "pieces")
    corpus = prepare_corpus([f"news={tmp_path}/a.jsonl"], str(tmp_path / "pieces"), tmp_path / "corpus").path
    again = prepare_corpus(f"corpus:{corpus}", "bytes", tmp_path / "again").path
    texts = Corpus.open(again, split="news")
    assert sorted(bytes(texts.document(i).tolist()) for i in range(2)) == [b" one two", b"one two two"]


def test_a_corpus_whose_tokens_lack_text_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("the END is near")
    lossy = Tokenizer(WordLevel({"the": 0, "is": 1, "<unk>": 2, "</s>": 3}, unk_token="<unk>"))
    lossy.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=lossy, eos_token="</s>").save_pretrained(tmp_path / "lossy")
    corpus = prepare_corpus(tmp_path / "texts.txt", str(tmp_path / "lossy"), tmp_path / "corpus", validation=0.0)
    with pytest.raises(DataError, match="cannot be read from its tokens: The tokenizer loses text"):
        prepare_corpus(f"corpus:{corpus.path}/train", "bytes", tmp_path / "x")


def test_parquet_files_and_folders(tmp_path: Path, table: pa.Table) -> None:
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=40)
    pq.write_table(
        table.slice(0, 3).set_column(0, "text", pa.array(["x", None, "z"], pa.large_string())), tmp_path / "b.parquet"
    )
    records = read(tmp_path)
    assert [record.text for record in records[:150]] == table.column("text").to_pylist()
    assert records[149].metadata["n"] == 149
    assert records[151] == BadRecord(f"{tmp_path / 'b.parquet'} row 2", "the column 'text' is not a string but null")
    with pytest.raises(DataError, match=r"a\.parquet has no column 'body'; its columns are 'text', 'n', 'day'"):
        read(tmp_path, "body")


def test_hugging_face_folders(tmp_path: Path, table: pa.Table) -> None:
    dataset = datasets.Dataset(table.select(["text", "n"]))
    dataset.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=dataset, other=dataset.select([0])).save_to_disk(tmp_path / "two")
    datasets.DatasetDict(a=dataset, b=dataset).save_to_disk(tmp_path / "three")
    wanted = [Document(f"row {i}", {"n": i}) for i in range(150)]
    assert read(tmp_path / "one") == read(tmp_path / "two") == read(tmp_path / "three" / "a") == wanted
    with pytest.raises(DataError, match=r"has no split 'train' but a, b; give .*three/a"):
        read(tmp_path / "three")
    (tmp_path / "one" / "data-00000-of-00001.arrow").write_bytes(b"junk")
    with pytest.raises(DataError, match="is not a dataset that save_to_disk wrote, or it is damaged"):
        read(tmp_path / "one")


def test_a_dataset_on_the_hub(monkeypatch: pytest.MonkeyPatch, table: pa.Table) -> None:
    calls = []

    def load_dataset(name: str, config: str | None, split: str, streaming: bool) -> Any:
        calls.append((name, config, split, streaming))
        dataset = datasets.Dataset(table.select(["text", "n"]))
        return dataset.to_iterable_dataset() if streaming else dataset

    monkeypatch.setattr(module, "hub_problem", lambda: None)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read("owner/name:config") == read("name") == [Document(f"row {i}", {"n": i}) for i in range(150)]
    assert next(iter(open_source("name:c:test", limit=1).records("text"))) == Document("row 0", {"n": 0})
    assert calls == [
        ("owner/name", "config", "train", False),
        ("name", None, "train", False),
        ("name", "c", "test", True),
    ]
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: 1 / 0)
    with pytest.raises(
        DataError, match=r"no file or folder owner/name here, and the Hub did not give that dataset: division"
    ):
        open_source("owner/name")


def test_missing_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "hub_problem", lambda: "the Hub is away")
    for name in ("texts.jsonl", "a/b/c", "./x", str(tmp_path / "x"), "notes.txt", "x.parquet", "~/nothing-here"):
        with pytest.raises(DataError, match="there is no file or folder"):
            open_source(name)
    with pytest.raises(DataError, match=r"there is no file or folder owner/name here, and the Hub is away"):
        open_source("owner/name")
    with pytest.raises(DataError, match=r"no file matches .*\*\.jsonl"):
        open_source(str(tmp_path / "*.jsonl"))
    with pytest.raises(DataError, match="holds no files"):
        open_source(tmp_path)


def test_a_source_of_a_package_has_its_prefix_as_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in the manifest; without one, preparing failed after all was read."""
    monkeypatch.setattr(sources.plugins, "points", lambda group: {"lines": None})
    monkeypatch.setattr(sources.plugins, "load", lambda group, base: {"lines": type("Lines", (Source,), {})})
    with pytest.raises(ConfigError, match="the source 'lines' is .*Lines, whose kind must be 'lines'"):
        open_source("lines:x")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such a file")
def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"a\xff.txt")).write_text("some words")
    with pytest.raises(DataError, match=r"the name of the file '.*a.udcff\.txt' is not UTF-8 text; rename it"):
        open_source(tmp_path)


def test_packed_lines_beside_others_are_not_left_out_in_silence(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "b.jsonl.zst").write_bytes(b"packed")
    (tmp_path / "notes.txt").write_text("left out beside tables")
    first, bad = read(tmp_path)
    assert first == Document("a", {})
    assert isinstance(bad, BadRecord) and "compressed in a way that is not read" in bad.why


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "below/a.txt"])
def test_a_link_to_nothing_is_not_left_out_in_silence(tmp_path: Path, name: str) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "words.txt").write_text("some words")
    (tmp_path / ".hidden").symlink_to("nowhere")
    assert len(read(tmp_path)) == 1
    (tmp_path / name).symlink_to("nowhere")
    with pytest.raises(DataError, match=f"{name} is a link to a file that is not there"):
        read(tmp_path)


@pytest.mark.parametrize(
    "column",
    [pa.array([1], pa.timestamp("s", "Nowhere/Zone")), pa.array([2**62], pa.duration("s"))],
    ids=["zone", "duration"],
)
def test_values_that_python_does_not_have(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"text": ["a"], "when": column}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet holds a value that Python does not have"):
        read(tmp_path / "a.parquet")


def test_damaged_files(tmp_path: Path) -> None:
    lines = b"".join(json.dumps({"text": f"{i} " * 50}).encode() + b"\n" for i in range(2000))
    packed = gzip.compress(lines)
    for name, content in {
        "cut.jsonl.gz": packed[: len(packed) // 2],
        "changed.jsonl.gz": packed[:-8] + b"\0" * 8,
        "plain.jsonl.gz": lines,
        "noise.jsonl.gz": packed[:200] + b"\xff" * 300 + packed[500:],
        "x.parquet": b"PAR1 no PAR1",
        "empty.parquet": b"",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{name} (is damaged or cut short|cannot be read)"):
            read(tmp_path / name)


def test_a_file_that_vanishes_or_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n')
    source = open_source(path)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(DataError, match=r"x\.jsonl cannot be read: Permission denied"):
            list(source.records("text"))
    path.unlink()
    with pytest.raises(DataError, match=r"there is no file .*x\.jsonl"):
        list(source.records("text"))


def test_progress_counts_files_in_every_pass(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    for part in range(3):
        write_jsonl(({"text": str(i)} for i in range(100)), f"{part}.jsonl")
    source = open_source(tmp_path)
    for _ in range(2):
        seen = [source.done for _ in source.records("text")]
        assert seen == [0.0] * 100 + [1 / 3] * 100 + [2 / 3] * 100


def test_a_folder_that_may_not_be_read_is_not_left_out_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name in ("a.txt", "closed/b.txt", ".hidden/c.txt"):
        (tmp_path / name).write_text(name[-5])
    assert [each.text for each in read(tmp_path)] == ["a", "b"]
    scandir = os.scandir

    def refused(path: Any) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(DataError, match=r"the folder .*/closed cannot be read \(Permission denied\)"):
        open_source(tmp_path)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is a pipe, which can be read once, but texts are read twice"):
        prepare_corpus(tmp_path / "pipe", "bytes", tmp_path / "out")


RUN = "is a run and holds no texts; give a corpus"
MODEL = "is the folder of a model; give a corpus"
REFUSED: list[tuple[dict[str, str], str]] = [
    ({"recipe.yaml": "{}", "environment.json": "{}"}, RUN),
    ({"inner/recipe.yaml": "{}", "inner/environment.json": "{}"}, RUN),
    *[
        ({f"{folder}config.json": "{}", f"{folder}{weights}": "{}"}, MODEL)
        for folder in ("", "inner/")
        for weights in ("model.safetensors", "model-00001-of-00002.safetensors", "w.gguf", "pytorch_model-01-of-02.bin")
    ],
    ({"a.jsonl": "", "b.parquet": "", "c.txt": ""}, r"files of several kinds \(jsonl, parquet\); name one kind"),
    ({"a.csv": "text,n,text\na,b,c\n"}, "a.csv has two columns 'text'; rename one of them"),
    ({"b.csv": "text;n;text\na;b;c\n"}, "b.csv has two columns 'text'; rename one of them"),
    ({"c.tsv": "text\tn\ttext\na\tb\tc\n"}, "c.tsv has two columns 'text'; rename one of them"),
]


@pytest.mark.parametrize(("files", "message"), REFUSED)
def test_folders_that_are_no_texts_are_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read(tmp_path)


def test_empty_columns_of_a_spreadsheet_are_no_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,,\na,,\nb,1,2\n")
    assert read(tmp_path / "a.csv") == [Document("a", {}), Document("b", {})]


def test_the_embedded_corpus_has_only_modules_of_the_library() -> None:
    documents = {document.metadata["module"]: document for document in StandardLibrary().records("text")}
    assert list(documents) == sorted(documents)
    assert len(documents) > 400
    assert {"json", "json.decoder", "asyncio.events", "argparse"} <= documents.keys()
    assert documents["json.decoder"].metadata["package"] == "json"
    assert documents["json.decoder"].metadata["docstring"] == "Implementation of JSONDecoder"
    parts = {part for module in documents for part in module.split(".")}
    assert not parts & {"test", "tests", "idle_test", "site-packages", "pip", "pytest"}
    assert not any(part.startswith("_sysconfigdata") for part in parts)


def test_summary_is_the_first_line_that_python_sees() -> None:
    compared = 0
    for name, path in stdlib_files()[::7]:
        source = path.read_bytes().decode("utf-8", errors="replace")
        try:
            docstring = ast.get_docstring(ast.parse(source))
        except SyntaxError:
            continue
        first = docstring.strip().splitlines()[0].strip() if docstring and docstring.strip() else ""
        assert docstring_summary(source).replace("\\", "") == first.replace("\\", ""), name
        compared += 1
    assert compared > 60


def test_summary_of_unusual_beginnings() -> None:
    assert docstring_summary("#!/usr/bin/python\n# -*- coding: utf-8 -*-\n\nr'''\n  One.\nTwo'''\n") == "One."
    assert docstring_summary('"""It\'s "quoted" here."""\n') == 'It\'s "quoted" here.'
    assert docstring_summary('"""\\\nContinued.\n"""\n') == "Continued."
    assert docstring_summary("import os\n'''no docstring'''\n") == ""
    assert docstring_summary('""" """\n') == ""
