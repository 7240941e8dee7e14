"""The LSTM language model: its state, its cache, its files."""

import pytest
import torch
from transformers import DynamicCache

from contextwise.base.errors import ConfigError
from contextwise.models.building import parameter_count
from contextwise.models.loading import kind_of
from contextwise.models.losses import has_plain_head
from contextwise.testing import measure_causality
from contextwise_papers.cue import LSTMConfig
from cue_models import draw, sentence_encoder


@pytest.fixture
def model():
    torch.manual_seed(0)
    made = sentence_encoder("lstm").eval()
    torch.nn.init.normal_(made.embed.weight)  # larger, so that tokens make a difference
    return made


def test_it_is_causal(model):
    assert has_plain_head(model) and kind_of(model.config) == "decoder"
    result = measure_causality(model)
    assert result.causal, str(result)
    outcomes = {effect.name: effect.outcome for effect in result.effects}
    assert outcomes.pop("packed neighbours") == "not measured"  # refused
    assert set(outcomes.values()) == {"none"}, str(result)


@pytest.mark.parametrize("positions", [[0, 1, 0, 1], [0, 0, 1, 2], [0, 1, 2, 0]])
def test_packed_documents_are_rejected(model, positions):
    for mask in (None, torch.ones(2, 4)):
        with pytest.raises(ConfigError, match="carries its state from one packed document into the next"):
            model(draw(2, 4)[0], position_ids=torch.tensor([positions] * 2), attention_mask=mask)


def test_packed_documents_with_padding_between_them_are_rejected(model):
    mask, positions = torch.tensor([[1, 1, 1, 0, 1, 1]] * 2), torch.tensor([[0, 1, 2, 0, 0, 1]] * 2)
    with pytest.raises(ConfigError, match="carries its state from one packed document into the next"):
        model(draw(2, 6)[0], attention_mask=mask, position_ids=positions)


@pytest.mark.parametrize("filler", [0, 1])
def test_positions_of_padding_are_no_packed_document(model, filler):
    tokens, mask = draw(2, 4)[0], torch.tensor([[0, 0, 1, 1]] * 2)
    padded = model(tokens, attention_mask=mask, position_ids=torch.tensor([[filler, filler, 0, 1]] * 2))
    assert torch.allclose(padded.logits[:, 2:], model(tokens[:, 2:]).logits, atol=1e-6)


def test_it_is_torchs_lstm_between_embedding_and_head(model):
    tokens, _ = draw()
    states, _ = model.lstm(model.embed(tokens))
    assert torch.equal(model.hidden_states(tokens), states)
    assert torch.equal(model(tokens).logits, states @ model.embed.weight.T)


def test_cached_pieces_of_padded_rows_equal_each_row_alone(model):
    tokens, _ = draw(length=9)
    pads, cache, pieces = [0, 2, 6], DynamicCache(), []
    mask = (torch.arange(9) >= torch.tensor(pads)[:, None]).long()
    for start, end in ((0, 4), (4, 8), (8, 9)):  # the third row has not begun in the first piece
        out = model(tokens[:, start:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
        pieces.append(out.logits)
    result = torch.cat(pieces, 1)
    for row, pad in enumerate(pads):
        torch.testing.assert_close(result[row, pad:], model(tokens[row : row + 1, pad:]).logits[0])


def test_a_cache_cannot_be_cropped_nor_come_from_elsewhere(model):
    out = model(draw()[0], use_cache=True)
    assert out.past_key_values.get_seq_length() == 7 and model(draw()[0], use_cache=False).past_key_values is None
    with pytest.raises(ConfigError, match="its cache cannot be cropped"):
        out.past_key_values.crop(-1)
    stock = sentence_encoder("gpt2")(draw()[0], use_cache=True)
    with pytest.raises(ConfigError, match="filled by another model"):
        model(draw()[0], past_key_values=stock.past_key_values)


def test_parameters_of_the_papers_size():
    layer = 4 * 512 * (512 + 512) + 8 * 512  # four gates, with torch's two biases each
    assert parameter_count(LSTMConfig()) == 28_996 * 512 + 4 * layer
    assert parameter_count(LSTMConfig(tie_word_embeddings=False)) == 2 * 28_996 * 512 + 4 * layer
