"""Features at the last token of RULER's prompts, for the entropy of what a model holds of a text (intrinsic entropy, A.2)."""

import torch
from safetensors.torch import save

from contextwise.base.progress import interruption
from contextwise.data import Corpus
from contextwise.evaluation.scoring.truncated import predict_last
from contextwise.evaluation.scoring.windows import evaluating, not_finite
from contextwise.measures import Outcome, Subject, Work
from contextwise.report import progress_bar
from contextwise_evals.answering.prompts import Encoder, check_positions, check_vocabulary
from contextwise_evals.ruler import Ruler
from contextwise_papers.intrinsic_entropy.entropy import EntropyResult


class RulerFeatures(Ruler):
    """The input of the vocabulary head at the last token of each prompt of one task, at every visible context.

    Settings are those of :class:`Ruler`, with one task; its prompts are the same, and the answers are not written.
    """

    name = "ruler-features"
    version = 2
    result = EntropyResult

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        assert self.visible is not None
        encoder = Encoder(subject.tokenizer, self.chat, subject.source)
        (task,), notes = self.make_tasks(encoder)
        prompts = self.encode([task], encoder)[task.name]
        check_vocabulary(subject, prompts)
        check_positions(subject, [(f"a question of {task.name}", prompt, 0) for prompt in prompts], self.visible[-1])
        features: dict[str, torch.Tensor] = {}
        with progress_bar("measure features", len(self.visible) * len(prompts)) as advance, evaluating(subject.model):
            for visible in self.visible:
                rows = []
                for prompt in prompts:
                    interruption.check("stopped while features were measured")
                    ids = prompt.prompt(visible)
                    # The target behind the last token, whose loss is not used, is that token again.
                    tokens_BT = torch.tensor([[*ids, ids[-1]]], device=subject.model.device)
                    _, features_BD = predict_last(subject.model, tokens_BT, "last")
                    assert features_BD is not None
                    if not bool(torch.isfinite(features_BD).all()):
                        raise not_finite("the model's feature is not finite at the last token of a prompt")
                    rows.append(features_BD)
                    advance(note=f"{visible:,} visible")
                features[str(visible)] = torch.cat(rows).cpu()
        return Outcome({"texts": len(prompts), "notes": notes}, {"features.safetensors": save(features)})
