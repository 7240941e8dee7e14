"""torch.export takes a model with a batch and a length that may change."""

from itertools import product

import pytest
import torch
from torch.export import Dim, export

from contextlm_models import LONGEST, contextlm, draw

FAMILIES_AND_OPTIONS = {
    "gpt2": ("gpt2", {}),
    "llama": ("llama", {"chunk_size": 3, "inject_every_layer": True}),
    "attention": ("gpt2", {"chunk_size": 7, "pooling": "attention", "injection_layer": 1}),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "padded"),
    [
        ("gpt2", True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [("gpt2", False), *product(["llama", "attention"], [False, True])]
        ),
    ],
)
def test_one_graph_serves_all_batches_and_lengths(name, padded):
    family, options = FAMILIES_AND_OPTIONS[name]
    model = contextlm(family, **options)
    if name == "attention":
        model.set_attn_implementation("eager")

    def inputs(rows, length):
        mask = torch.ones(rows, length, dtype=torch.long)
        mask[0, : length // 3] = 0
        return {"input_ids": draw(rows, length)} | ({"attention_mask": mask} if padded else {})

    changing = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    given = inputs(3, 14)
    shapes = {**dict.fromkeys(given, changing), "use_cache": None}
    with torch.no_grad():
        exported = export(model, (), given | {"use_cache": False}, dynamic_shapes=shapes).module()
        for rows, length in ((3, 14), (2, 2), (3, 3), (3, 4), (2, 7), (4, 8), (2, 17), (3, LONGEST)):
            given = inputs(rows, length)
            expected = model(**given, use_cache=False).logits
            result = exported(**given, use_cache=False).logits
            real = given.get("attention_mask", torch.ones(rows, length)).bool()
            torch.testing.assert_close(result[real], expected[real], atol=1e-5, rtol=1e-5)
