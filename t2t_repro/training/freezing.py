"""Keep the weights of some parts of a model as they are."""

import re

from pipelines.errors import BadInput
from t2t_repro.model.transformer import Transformer


def freeze(model: Transformer, parts: str | None) -> None:
    """Make the weights of parts of a model untrainable, as Keras has it.

    Args:
        model: The model.
        parts: Names with commas between them, each the beginning of weights' paths: "embedding",
            "encoder" (all its layers), "decoder_0" or "encoder_0/feed_forward". None: no part.

    Raises:
        BadInput: there is no part of a name, or nothing would be left to train.
    """
    paths = {weight.path.removeprefix(f"{model.name}/"): weight for weight in model.weights}
    for name in parts.split(",") if parts else ():
        own = re.compile(rf"{re.escape(name)}(_\d+)?/")
        frozen = [weight for path, weight in paths.items() if own.match(f"{path}/")]
        if not frozen:
            first = list(dict.fromkeys(path.split("/")[0] for path in paths))
            stems = list(dict.fromkeys(re.sub(r"_\d+$", "", part) for part in first))
            raise BadInput(
                f"freeze: no part is called '{name}'; wanted some of {', '.join(stems)}, one of "
                f"their layers, such as {first[-1]}, or a part of one, such as "
                f"{first[-1]}/feed_forward, with commas between them"
            )
        for weight in frozen:
            weight.trainable = False
    if not model.trainable_variables:
        raise BadInput(f"freeze: with {parts} nothing is left to train; leave a part out")
