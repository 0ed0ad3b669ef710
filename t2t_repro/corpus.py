"""A run's text as ids: its vocabulary and its splits, made on first use.

They are kept in <work directory>/prepared or, with `prepared_dir`, in a directory that runs share,
which may be an address for tf.io.gfile:

    corpus.json             the settings and the text that the rest was made from
    vocabulary.model        and vocabulary.vocab, its pieces for people to read
    train/                  see `pipelines.prepared`; of an address, a copy in the work directory

The dev split and a copy of the vocabulary are always in the work directory.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelines import storage
from pipelines.errors import BadInput
from pipelines.prepare import (
    Pair,
    block_fingerprint,
    blocks,
    fetch,
    prepare,
    text_fingerprint,
)
from pipelines.prepared import Prepared
from pipelines.vocabulary import FILES, Vocabulary
from t2t_repro.config import Config
from t2t_repro.problems import PROBLEMS

_DESCRIPTION = "corpus.json"


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The vocabulary and the splits of one run."""

    config: Config
    workdir: Path

    @property
    def directory(self) -> str:
        """Where vocabulary and training split are kept."""
        return self.config.data.prepared_dir or str(self.workdir / "prepared")

    @property
    def has_begun(self) -> bool:
        """Whether the run has read all of its text; from then on it is not read again."""
        return (self.workdir / "config.yaml").exists()

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Learnt on both sides of the training text, if there is none yet.

        Raises:
            BadInput: `prepared_dir` holds another corpus, or the text cannot be used.
        """
        if not self.has_begun:
            found = self._description()
            self._fetch_vocabulary() if found and self._is_current(found) else self._learn()
        return Vocabulary.load(self.workdir)

    def prepare_train(self, beam_options: list[str] | None = None) -> None:
        """Makes what is missing of the training split, here or, given options, on Apache Beam.

        Raises:
            BadInput: the text has changed since the vocabulary was learnt from it; and as
                `pipelines.prepare.prepare`.
        """
        vocabulary, limit = self.vocabulary, self.config.data.max_length
        directory, found = f"{self.directory}/train", self._description()
        if found and found["vocabulary"] != vocabulary.fingerprint:
            raise BadInput(
                f"{self.directory} has another vocabulary than {self.workdir}; give another "
                "--prepared_dir, or another --workdir to begin a new run with that vocabulary"
            )
        if beam_options is not None:
            from pipelines.prepare_on_beam import prepare_on_beam

            manifest = prepare_on_beam(self._text, vocabulary, limit, directory, beam_options)
        else:
            trust = self.has_begun or self.config.data.prepared_dir is not None
            manifest = prepare(self._text, vocabulary, limit, directory, trust=trust)
        if found and found["text"] != manifest["text"]:
            raise BadInput(
                f"the training text is not the one that {self.directory}/{FILES[0]} was learnt "
                f"from; delete {self.directory} to begin anew, or bring the text back"
            )

    def train(self) -> Prepared:
        """The training split, pairs longer than `max_length` dropped."""
        self.prepare_train()
        directory = f"{self.directory}/train"
        if storage.is_address(directory):
            local = self.workdir / "prepared" / "train"
            fetch(directory, local)
            directory = str(local)
        return _load("train", directory)

    def held_out(self, split: str, folder: Path) -> Prepared:
        """Dev or test, prepared in `folder`; only what the decoder would cut is dropped."""
        limit, directory = self.config.decode.max_source_length, folder / split
        prepare(lambda: self._examples(split), self.vocabulary, limit, directory)
        return _load(split, str(directory))

    def _examples(self, split: str) -> Iterator[Pair]:
        return PROBLEMS[self.config.problem].examples(split, self.config)

    def _text(self) -> Iterator[Pair]:
        return self._examples("train")

    def _settings(self) -> dict[str, Any]:
        """What decides, with the text itself, how the training split comes out."""
        data = self.config.data
        files = (*data.source_files, *data.target_files, *data.tsv_files)
        return {
            "problem": self.config.problem,
            "vocabulary_size": data.vocabulary_size,
            "max_length": data.max_length,
            "tokenized": data.tokenized,
            "held_out_share": data.held_out_share,
            # Other runs may find the same files elsewhere.
            "files": [Path(file).name for file in files],
            "own_dev_files": bool(data.dev_source_files),
            "own_test_files": bool(data.test_source_files),
        }

    def _description(self) -> Mapping[str, Any] | None:
        """What the directory holds; None if nothing, or what this run may replace."""
        content, wanted = storage.read(self.directory, _DESCRIPTION), self._settings()
        found = json.loads(content) if content else None
        if found is None or wanted.items() <= found.items():
            return found
        if self.config.data.prepared_dir is None:
            return None  # of a start that failed, with other settings
        other = [f"{k}: {v} (there {found.get(k)})" for k, v in wanted.items() if v != found.get(k)]
        raise BadInput(
            f"--prepared_dir={self.directory} holds another corpus, {', '.join(other)}; use the "
            "same settings or another directory"
        )

    def _is_current(self, found: Mapping[str, Any]) -> bool:
        """Whether the text is still the same; what runs share is believed."""
        if self.config.data.prepared_dir is not None:
            return True
        prints = (block_fingerprint(pairs) for _, pairs in blocks(self._text()))
        return text_fingerprint(prints) == found["text"]

    def _fetch_vocabulary(self) -> None:
        for name in FILES:
            if (content := storage.read(self.directory, name)) is None:
                raise BadInput(f"{self.directory}: no {name} beside {_DESCRIPTION}; copy it again")
            storage.write(str(self.workdir), name, content)

    def _learn(self) -> None:
        fingerprints: list[str] = []

        def sentences() -> Iterator[str]:
            for _, pairs in blocks(self._text()):
                fingerprints.append(block_fingerprint(pairs))
                for pair in pairs:
                    yield pair["source"]
                    yield pair["target"]

        vocabulary = Vocabulary.learn(sentences(), self.config.data.vocabulary_size)
        vocabulary.save(self.workdir)
        for name in FILES:
            storage.write(self.directory, name, (self.workdir / name).read_bytes())
        description = self._settings() | {
            "text": text_fingerprint(fingerprints),
            "vocabulary": vocabulary.fingerprint,
        }
        storage.write(self.directory, _DESCRIPTION, json.dumps(description, indent=2).encode())
        size = vocabulary.size
        print(f"vocabulary: {size:,} pieces learnt on the training text", file=sys.stderr)


def _load(split: str, directory: str) -> Prepared:
    """What was prepared, reported on stderr."""
    try:
        prepared = Prepared.load(directory)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{directory}: cannot be read back ({error}); is the disk full? Delete it and run the "
            "same command again"
        ) from None
    print(f"{split}: {prepared.report()}", file=sys.stderr)
    return prepared
