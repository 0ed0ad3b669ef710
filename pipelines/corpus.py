"""A run's text as ids: its vocabulary and its splits, made on first use.

The work directory holds them. Runs may share them in another directory, which may be an address for
tf.io.gfile:

    corpus.json             the settings and the fingerprint of the text that the rest was made from
    vocabulary.model        the vocabulary, and vocabulary.vocab, its pieces for people to read
    prepared/train-.../     see `pipelines.shards`; named after text, vocabulary, length limit
                            and filters, so that runs with different ones never write to one place

A run that shares a corpus copies corpus.json and the vocabulary, and from an address also the
training split. The dev split is always in the work directory.
"""

import collections
import dataclasses
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelines import json_object, storage
from pipelines.corpus_report import CorpusReport, report_on
from pipelines.encode import (
    Pair,
    block_fingerprint,
    blocks,
    encode_split,
    fetch_split,
    find_damage,
    find_manifest,
    text_fingerprint,
)
from pipelines.errors import BadInput
from pipelines.filters import NO_FILTERS, Filters
from pipelines.json_object import is_fingerprint
from pipelines.shard_files import MANIFEST, Damaged
from pipelines.shards import EncodedSplit, counts_line
from pipelines.vocabulary import FILES, Vocabulary

_DESCRIPTION = "corpus.json"
# Names in corpus.json of earlier versions.
_FORMER_NAMES = {
    "extra_tree_files": "extra_trees",
    "dev_source_files": "own_dev_files",
    "test_source_files": "own_test_files",
}

Description = dict[str, Any]


@dataclasses.dataclass
class Corpus:
    """The vocabulary and the splits of one run.

    Args:
        examples: Returns the pairs of a split, "train", "dev" or "test".
        workdir: The run's work directory.
        settings: The settings that determine, with the text itself, the encoded training split.
            Runs that share a corpus must agree on them.
        vocabulary_size: Pieces of the vocabulary.
        max_length: The most pieces on a side of a training pair, EOS included; longer ones are
            dropped.
        filters: Which other training pairs are dropped.
        max_source_length: The same limit for held-out pairs; the decoder truncates its input to it.
        vocabulary_from: A model file or a run, whose vocabulary is used; None to learn one.
        shared_dir: The directory or address that runs share; None if each has its own corpus.
        is_settled: Whether the vocabulary is final. The training text is then read again only if
            its encoded split is missing or incomplete; held-out text is read at each start.
        read_only: Whether the files exist already and are only read, without a report: with several
            workers the chief has made them.
    """

    examples: Callable[[str], Iterator[Pair]]
    workdir: Path
    _: dataclasses.KW_ONLY
    settings: Mapping[str, Any]
    vocabulary_size: int
    max_length: int
    max_source_length: int
    filters: Filters = NO_FILTERS
    vocabulary_from: str | None = None
    shared_dir: str | None = None
    is_settled: bool = False
    read_only: bool = False
    # The manifest of the training split, once it has been made here from the text.
    _made: Description | None = dataclasses.field(default=None, init=False)

    @property
    def shared(self) -> str | None:
        """The directory or address that runs share, as `storage` expects it."""
        directory = self.shared_dir and self.shared_dir.removeprefix("file://")
        return directory and (directory.rstrip("/") or "/")

    @property
    def home(self) -> str:
        """The directory or address where vocabulary and training split are made."""
        return self.shared or str(self.workdir)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, given or learnt on both sides of the training text if there is none yet.

        Raises:
            BadInput: the given vocabulary does not fit, the shared directory holds another corpus,
                the text cannot be used, or vocabulary.model is not the one that corpus.json
                describes.
        """
        if not self.is_settled:
            found = self._find_description()
            if found and self._has_same_text(found):
                self._copy(self.home, str(self.workdir))
            else:
                self._make_vocabulary()
        vocabulary = Vocabulary.load(self.workdir)
        described = _read_description(str(self.workdir)).get("vocabulary")
        if described not in (None, vocabulary.fingerprint):
            raise BadInput(
                f"{self.workdir / FILES[0]}: not the vocabulary that {_DESCRIPTION} describes (its "
                "SHA-256 differs); copy both files back from where they were made, or begin a new "
                "run in another --workdir"
            )
        return vocabulary

    @cached_property
    def _given(self) -> Vocabulary | None:
        return Vocabulary.given(self.vocabulary_from) if self.vocabulary_from else None

    @property
    def _described(self) -> Description:
        """Return what corpus.json says of vocabulary and training split, beside the text."""
        settings = dict(self.settings)
        if self._given:
            settings.pop("vocabulary_size", None)  # without effect
        return settings | {"given_vocabulary": self._given and self._given.fingerprint}

    def prepare_train(self, beam_options: list[str] | None = None) -> str:
        """Encode the shards of the training split that are missing or damaged.

        Args:
            beam_options: Options of Apache Beam, which then encodes them; None encodes them here.

        Returns:
            The directory or address of the split.

        Raises:
            BadInput: the text has changed since the vocabulary was learnt from it; or for the
                reasons of `pipelines.encode.encode_split`.
        """
        directory = self._train_directory
        manifest = self._finished_train()
        damage = manifest and find_damage(manifest, directory)
        if damage:
            _report(damage)
        if damage or not manifest:
            manifest = self._encode_train(beam_options)
        print(f"train: {counts_line(manifest['pairs'], manifest)}", file=sys.stderr)
        return directory

    def report(self) -> CorpusReport:
        """Return what the training text is like before any pair is dropped; it is read again.

        Raises:
            BadInput: the text has changed since the vocabulary was learnt from it.
        """
        self._check_text(self._read_fingerprint())
        return report_on(self._train_text, self.vocabulary, self.max_length)

    def train(self) -> EncodedSplit:
        """Return the training split, without pairs longer than `max_length` and those of `filters`.

        If a file of it is damaged, its shard is made again, once.
        """
        if not (self._made or self._finished_train()):
            self._encode_train()
        try:
            return self._load("train", self._local_train())
        except Damaged as damage:
            if self.read_only:
                raise
            _report(damage)
        self._encode_train()
        return self._load("train", self._local_train())

    def length_ratio(self) -> float:
        """Return the pieces of a target for each piece of a source, in the whole training split."""
        manifest = self._made or self._finished_train() or self._encode_train()
        return manifest["target_tokens"] / manifest["source_tokens"]

    @cached_property
    def _text_fingerprint(self) -> str:
        """The fingerprint of the training text that the vocabulary was learnt from."""
        if not (described := _read_description(str(self.workdir))):
            raise BadInput(
                f"{self.workdir / _DESCRIPTION}: missing; copy it back, or begin a new run in "
                "another --workdir"
            )
        return described["text"]

    @property
    def _train_directory(self) -> str:
        """The directory or address of the training split."""
        vocabulary = self.vocabulary  # first of all: learning it writes the description
        key = f"{self._text_fingerprint} {vocabulary.fingerprint} {self.max_length}"
        if self.filters.used:
            key += f" {self.filters.used}"
        return f"{self.home}/prepared/train-{hashlib.sha256(key.encode()).hexdigest()[:12]}"

    @property
    def links_file(self) -> Path:
        """The file for the word alignment of the training split, see `augmentation.links_file`."""
        return self.workdir / "prepared" / f"links-{Path(self._train_directory).name}"

    @property
    def is_prepared(self) -> bool:
        """Whether the encoded training split is complete and can be trusted."""
        return self._finished_train() is not None

    def _finished_train(self) -> Description | None:
        """Return the manifest of the training split if it is complete and can be trusted."""
        if not (self.is_settled or self.shared):  # the text may have changed
            return None
        return find_manifest(self.vocabulary, self.max_length, self._train_directory, self.filters)

    def _encode_train(self, beam_options: list[str] | None = None) -> Description:
        """Encode missing shards of the training split, here or, given options, on Apache Beam."""
        if self.read_only:
            raise BadInput(
                f"{self._train_directory}: no whole training split is seen there, which the first "
                "worker has made; --workdir and --prepared_dir must be directories that all hosts "
                "share"
            )
        vocabulary, limit, directory = self.vocabulary, self.max_length, self._train_directory
        if (self.is_settled or self.shared) and storage.names(directory):
            self._check_text(self._read_fingerprint())  # before another text replaces good shards
        if beam_options is None:
            manifest = encode_split(self._train_text, vocabulary, limit, directory, self.filters)
        else:
            from pipelines.encode_on_beam import encode_split_on_beam

            manifest = encode_split_on_beam(
                self._train_text, vocabulary, limit, directory, beam_options, self.filters
            )
        if manifest["text"] != self._text_fingerprint:
            storage.remove(directory, MANIFEST)
        self._check_text(manifest["text"])
        self._made = manifest
        return manifest

    def _read_fingerprint(self) -> str:
        """Return the fingerprint of the training text as it is now."""
        return text_fingerprint(block_fingerprint(pairs) for _, pairs in blocks(self._train_text()))

    def _check_text(self, fingerprint: str) -> None:
        """Raise BadInput if a training text is not that of the vocabulary."""
        if fingerprint != self._text_fingerprint:
            raise BadInput(
                f"the training text is not the text that {self.workdir / FILES[0]} was learnt "
                "from; bring that text back, or begin a new run in another --workdir"
            )

    def _local_train(self) -> str:
        """Return the directory of the training split, copied here if it lies at an address."""
        directory = self._train_directory
        if not storage.is_address(directory):
            return directory
        local = self.workdir / "prepared" / Path(directory).name
        if not self.read_only:
            fetch_split(directory, local)
        return str(local)

    def held_out(self, split: str) -> EncodedSplit:
        """Return the dev or test split, without pairs that the decoder would cut."""
        limit = self.max_source_length
        directory = self.workdir / "prepared" / split
        if not self.read_only:
            encode_split(lambda: self.examples(split), self.vocabulary, limit, directory)
        return self._load(split, str(directory))

    def _train_text(self) -> Iterator[Pair]:
        return self.examples("train")

    def _find_description(self) -> Description:
        """Return the description of what `home` holds; empty if there is none that can be used.

        A setting that the description lacks counts as off (false, 0, none or empty): it did not
        exist when the corpus was made.
        """
        try:
            found = _read_description(self.home)
        except BadInput:
            if self.shared:
                raise
            return {}  # from a start that failed
        found = {k: found[old] for k, old in _FORMER_NAMES.items() if old in found} | found
        off = {k: v or False for k, v in found.items()}
        differing = {k: v for k, v in self._described.items() if (v or False) != off.get(k, False)}
        if not found or not differing:
            return found
        if not self.shared:
            return {}  # from a start that failed, with other settings
        there = {k: json_object.shown(found[k]) if k in found else "not set" for k in differing}
        other = [f"{k}: {v} (there {there[k]})" for k, v in differing.items()]
        raise BadInput(
            f"--prepared_dir={self.shared} holds another corpus, {', '.join(other)}; use the same "
            "settings or another directory"
        )

    def _has_same_text(self, found: Description) -> bool:
        """Return whether the text fits the description; only its first block if it is shared."""
        if not self.shared:
            return found["text"] == self._read_fingerprint()
        _, pairs = next(blocks(self._train_text()), (0, []))
        if found["text_begins"] != block_fingerprint(pairs):
            raise BadInput(
                f"--prepared_dir={self.shared} holds another text; use another directory"
            )
        return True

    def _make_vocabulary(self) -> None:
        """Learn the vocabulary, unless it is given, and write it, here and where it is shared.

        Its description is written with it, for which all text is read in either case.
        """
        fingerprints: list[str] = []

        def sentences() -> Iterator[str]:
            for _, pairs in blocks(self._train_text()):
                fingerprints.append(block_fingerprint(pairs))
                for pair in pairs:
                    yield pair["source"]
                    yield pair["target"]

        vocabulary = self._given  # a mistake in it is found before anything is deleted
        # Remove files that a failed start with other text or settings has left.
        (self.workdir / _DESCRIPTION).unlink(missing_ok=True)
        for split in self.workdir.glob("prepared/train-*"):
            split.unlink() if split.is_symlink() else shutil.rmtree(split)
        for links in self.workdir.glob("prepared/links-train-*"):
            links.unlink()
        if vocabulary:
            collections.deque(sentences(), maxlen=0)
        else:
            vocabulary = Vocabulary.learn(sentences(), self.vocabulary_size)
        vocabulary.save(self.workdir)
        description = self._described | {
            "text": text_fingerprint(fingerprints),
            "text_begins": next(iter(fingerprints), block_fingerprint(())),
            "vocabulary": vocabulary.fingerprint,
        }
        content = json.dumps(description, indent=2) + "\n"
        storage.write(str(self.workdir), _DESCRIPTION, content.encode())
        origin = f"of {self.vocabulary_from}" if self._given else "learnt on the training text"
        print(f"vocabulary: {vocabulary.size:,} pieces {origin}", file=sys.stderr)
        # Another run may have filled the shared directory meanwhile; if it holds another corpus,
        # `_find_description` raises.
        if self.shared and not self._find_description():
            self._copy(str(self.workdir), self.shared)

    def _load(self, split: str, directory: str) -> EncodedSplit:
        """Load an encoded split; the process that made it reports its counts on stderr."""
        encoded = EncodedSplit.load(directory, self.vocabulary.size)
        if not self.read_only:
            print(f"{split}: {encoded.report()}", file=sys.stderr)
        return encoded

    def _copy(self, source: str, target: str) -> None:
        """Copy the vocabulary, and then its description, from one directory to another."""
        for name in (*FILES, _DESCRIPTION) if source != target else ():
            if (content := storage.read(source, name)) is None:
                raise BadInput(f"{source}: no {name} beside {_DESCRIPTION}; copy it again")
            storage.write(target, name, content)


def _report(damage: Damaged) -> None:
    print(
        f"{damage.path}: damaged ({damage.reason}); reading the training text to make it again",
        file=sys.stderr,
    )


def _read_description(directory: str) -> Description:
    """Return the description in a directory, empty if there is none."""
    if (content := storage.read(directory, _DESCRIPTION)) is None:
        return {}
    try:
        found = json_object.parse(content)
        names = ("text", "text_begins", "vocabulary")
        json_object.check(found, dict.fromkeys(names, is_fingerprint))
    except ValueError as error:
        raise BadInput(
            f"{directory}/{_DESCRIPTION}: damaged ({error}); copy it back from where it was made, "
            "or use another directory"
        ) from None
    return found
