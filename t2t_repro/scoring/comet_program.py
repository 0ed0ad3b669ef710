"""Print the COMET score of samples given as JSON; `comet` runs it where unbabel-comet is installed.

It imports nothing of this package, which that Python need not have.
"""

import json
import sys


def main() -> None:
    """Score the samples on standard input with the model named by the first argument."""
    import torch
    from comet import load_from_checkpoint

    model, samples = load_from_checkpoint(sys.argv[1]), json.load(sys.stdin)
    gpus = min(1, torch.cuda.device_count())
    print(float(model.predict(samples, batch_size=16, gpus=gpus, progress_bar=False).system_score))


if __name__ == "__main__":
    main()
