"""A run's text as ids: its vocabulary and its splits, made on first use.

The work directory holds them or, where runs share them, `prepared_dir`, which may be an address for
tf.io.gfile:

    corpus.json             what the rest was made from: the settings, the fingerprint of the text
    vocabulary.model        and vocabulary.vocab, its pieces for people to read
    prepared/train-.../     see `pipelines.shards`; named after text, vocabulary and length limit,
                            so that runs with different ones never write to one place

A run that shares copies corpus.json and the vocabulary, and from an address the training split. The
dev split is always in the work directory.
"""

import dataclasses
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelines import storage
from pipelines.augmentation.auxiliary_tasks import AuxiliaryTasks
from pipelines.augmentation.bpe_dropout import BpeDropout
from pipelines.batching import Alteration, Batching
from pipelines.encode import (
    Pair,
    block_fingerprint,
    blocks,
    encode_split,
    fetch_split,
    find_manifest,
    text_fingerprint,
)
from pipelines.errors import BadInput
from pipelines.shards import MANIFEST, EncodedSplit
from pipelines.vocabulary import FILES, Vocabulary
from t2t_repro.config import Config
from t2t_repro.problems import PROBLEMS

_DESCRIPTION = "corpus.json"

Description = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The vocabulary and the splits of one run."""

    config: Config
    workdir: Path
    made: bool = False  # by the chief of several workers; here it is only read, and not reported

    @property
    def shared(self) -> str | None:
        """The directory or address that runs share."""
        directory = self.config.data.prepared_dir
        return directory and directory.removeprefix("file://").rstrip("/")

    @property
    def home(self) -> str:
        """Where corpus and training split are made."""
        return self.shared or str(self.workdir)

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
            found = self._described()
            if found and self._is_current(found):
                self._copy(self.home, str(self.workdir))
            else:
                self._learn()
        return Vocabulary.load(self.workdir)

    def prepare_train(self, beam_options: list[str] | None = None) -> str:
        """Makes what is missing of the training split, here or, given options, on Apache Beam.

        Returns:
            Where the split is.

        Raises:
            BadInput: the text has changed since the vocabulary was learnt from it; and as
                `pipelines.encode.encode_split`.
        """
        vocabulary, limit = self.vocabulary, self.config.data.max_length
        if not (wanted := _read_json(str(self.workdir)).get("text")):
            raise BadInput(
                f"{self.workdir / _DESCRIPTION}: missing; copy it back, or begin a new run in "
                "another --workdir"
            )
        name = hashlib.sha256(f"{wanted} {vocabulary.fingerprint} {limit}".encode()).hexdigest()
        directory = f"{self.home}/prepared/train-{name[:12]}"
        if (self.has_begun or self.shared) and find_manifest(vocabulary, limit, directory):
            return directory
        if beam_options is None:
            manifest = encode_split(self._train_text, vocabulary, limit, directory)
        else:
            from pipelines.encode_on_beam import encode_split_on_beam

            manifest = encode_split_on_beam(
                self._train_text, vocabulary, limit, directory, beam_options
            )
        if manifest["text"] != wanted:
            storage.remove(directory, MANIFEST)
            raise BadInput(
                f"the training text is not the one that {self.workdir / FILES[0]} was learnt from; "
                "bring that text back, or begin a new run in another --workdir"
            )
        return directory

    def train(self) -> EncodedSplit:
        """The training split, pairs longer than `max_length` dropped."""
        directory = self.prepare_train()
        if storage.is_address(directory):
            local = self.workdir / "prepared" / Path(directory).name
            if not self.made:
                fetch_split(directory, local)
            directory = str(local)
        return self._load("train", directory)

    def batching(self) -> Batching:
        """The training split in batches; altered before any cool-down, if so configured."""
        data, train, prepared = self.config.data, self.config.train, self.train()
        return Batching(
            prepared,
            tokens_per_batch=data.tokens_per_batch,
            max_shapes=data.max_shapes,
            count_padding=data.count_padding,
            seed=train.seed,
            alterations=tuple(self._alterations(prepared)),
            altered_updates=round((1 - train.cooldown_share) * train.train_steps),
        )

    def _alterations(self, prepared: EncodedSplit) -> Iterator[Alteration]:
        train, most = self.config.train, self.config.data.max_length
        if train.bpe_dropout:
            yield BpeDropout(self.vocabulary, train.bpe_dropout, most, train.seed)
        if train.auxiliary_tasks:
            yield AuxiliaryTasks(self.vocabulary, prepared, most, train.seed)

    def held_out(self, split: str, folder: Path) -> EncodedSplit:
        """Dev or test, prepared in `folder`; only what the decoder would cut is dropped."""
        limit, directory = self.config.decode.max_source_length, folder / split
        if not self.made:
            encode_split(lambda: self._examples(split), self.vocabulary, limit, directory)
        return self._load(split, str(directory))

    def _examples(self, split: str) -> Iterator[Pair]:
        return PROBLEMS[self.config.problem].examples(split, self.config)

    def _train_text(self) -> Iterator[Pair]:
        return self._examples("train")

    def _settings(self) -> Description:
        """What decides, with the text itself, how the training split comes out."""
        data = self.config.data
        return {
            "problem": self.config.problem,
            "vocabulary_size": data.vocabulary_size,
            "max_length": data.max_length,
            "tokenized": data.tokenized,
            "held_out_share": data.held_out_share,
            "gold_repeats": data.gold_repeats,
            "altered_copies": data.altered_copies,
            "spell_words": data.spell_words,
            "extra_trees": bool(data.extra_tree_files),
            "own_dev_files": bool(data.dev_source_files),
            "own_test_files": bool(data.test_source_files),
        }

    def _described(self) -> Description:
        """What `home` holds; empty if nothing, or what this run may replace."""
        found, wanted = _read_json(self.home), self._settings()
        if not found or wanted.items() <= found.items():
            return found
        if not self.shared:
            return {}  # of a start that failed, with other settings
        other = [f"{k}: {v} (there {found.get(k)})" for k, v in wanted.items() if v != found.get(k)]
        raise BadInput(
            f"--prepared_dir={self.shared} holds another corpus, {', '.join(other)}; use the same "
            "settings or another directory"
        )

    def _is_current(self, found: Description) -> bool:
        """Whether the text is still the same; of a text that runs share, its first block."""
        text = blocks(self._train_text())
        if not self.shared:
            return found["text"] == text_fingerprint(block_fingerprint(pairs) for _, pairs in text)
        _, pairs = next(text, (0, []))
        if found["text_begins"] != block_fingerprint(pairs):
            raise BadInput(
                f"--prepared_dir={self.shared} holds another text; use another directory"
            )
        return True

    def _learn(self) -> None:
        fingerprints: list[str] = []

        def sentences() -> Iterator[str]:
            for _, pairs in blocks(self._train_text()):
                fingerprints.append(block_fingerprint(pairs))
                for pair in pairs:
                    yield pair["source"]
                    yield pair["target"]

        # Of a start that failed, with something else.
        (self.workdir / _DESCRIPTION).unlink(missing_ok=True)
        for split in self.workdir.glob("prepared/train-*"):
            shutil.rmtree(split)
        vocabulary = Vocabulary.learn(sentences(), self.config.data.vocabulary_size)
        vocabulary.save(self.workdir)
        description = self._settings() | {
            "text": text_fingerprint(fingerprints),
            "text_begins": fingerprints[0],
            "vocabulary": vocabulary.fingerprint,
        }
        content = json.dumps(description, indent=2) + "\n"
        storage.write(str(self.workdir), _DESCRIPTION, content.encode())
        print(
            f"vocabulary: {vocabulary.size:,} pieces learnt on the training text", file=sys.stderr
        )
        # Another run may have filled it meanwhile, with the same or it is refused.
        if self.shared and not self._described():
            self._copy(str(self.workdir), self.shared)

    def _load(self, split: str, directory: str) -> EncodedSplit:
        """What was prepared, reported on stderr by who made it."""
        try:
            prepared = EncodedSplit.load(directory)
        except OSError as error:
            raise BadInput(f"{directory}: cannot be read ({error}); check the disk") from None
        except (ValueError, KeyError) as error:
            raise BadInput(
                f"{directory}: damaged ({error}); delete it and run the same command again"
            ) from None
        if not self.made:
            print(f"{split}: {prepared.report()}", file=sys.stderr)
        return prepared

    def _copy(self, source: str, target: str) -> None:
        """Copies vocabulary and description, last, from one directory to another."""
        for name in (*FILES, _DESCRIPTION) if source != target else ():
            if (content := storage.read(source, name)) is None:
                raise BadInput(f"{source}: no {name} beside {_DESCRIPTION}; copy it again")
            storage.write(target, name, content)


def _read_json(directory: str) -> Description:
    """The description in a directory, empty if there is none."""
    content = storage.read(directory, _DESCRIPTION)
    try:
        return json.loads(content) if content else {}
    except ValueError:
        raise BadInput(f"{directory}/{_DESCRIPTION}: damaged, no JSON; copy it again") from None
