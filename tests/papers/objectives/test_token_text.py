"""The text of tokens, and the places of tokens in it."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from contextwise.base.errors import ConfigError
from contextwise.objectives import SpecialToken, Vocabulary, build_objective
from contextwise_papers.objectives.text import TokenText


@example(text="\x7f\x80\u07ff\u0800\uffff\U00010000", kind="letters")
@given(text=st.text(max_size=60), kind=st.sampled_from(["bpe", "letters"]))
def test_the_text_is_the_text_and_tokens_stand_where_they_stand(bpe, letters, text, kind):
    tokenizer = {"bpe": bpe, "letters": letters}[kind]
    (ids,) = tokenizer.encode([text])
    written, starts = TokenText(tokenizer.tokenizer).read(ids)
    assert written == text and starts[-1] == len(text) and len(starts) == len(ids) + 1
    # The character that holds the token's first byte.
    sizes = [len(character.encode()) for character in text]
    holder = np.repeat(np.arange(len(text)), sizes)
    pieces = [len(tokenizer.tokenizer.backend_tokenizer.id_to_token(int(i))) for i in ids]
    first = np.cumsum([0, *pieces])[:-1]
    assert starts[:-1].tolist() == holder[first].tolist()


def test_windows_that_begin_and_end_inside_a_character(letters):
    ids = np.frombuffer("é日x日".encode()[1:-1], dtype=np.uint8)
    written, starts = TokenText(letters.tokenizer).read(ids)
    assert written == "\0日x\0\0"
    assert starts.tolist() == [0, 1, 1, 1, 2, 3, 4, 5]


def test_tokenizers_that_are_not_over_bytes():
    vocabulary = {"<unk>": 0, "▁the": 1, "▁s": 2, "ea": 3, "▁": 4, "x": 5}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    text = TokenText(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))
    written, starts = text.read(np.array([1, 2, 3, 1]))
    assert (written, starts.tolist()) == ("the sea the", [0, 3, 5, 7, 11])


def test_tokens_that_are_needed_but_not_there(letters):
    words = Vocabulary(letters.tokenizer, letters.end_of_text)
    with pytest.raises(ConfigError, match="<extra_id_0>, .*<extra_id_3> and 96 more, but the tokenizer has no such"):
        words.ids(build_objective("spans").special_tokens, "spans")
    with pytest.raises(ConfigError, match="corpus comes without a tokenizer; prepare the corpus with a tokenizer"):
        Vocabulary(None).ids([SpecialToken("[MASK]", "mask")], "masked")
    # A text that happens to be in the vocabulary is not a special token.
    with pytest.raises(ConfigError, match="special tokens a, but"):
        words.ids([SpecialToken("a")], "x")
