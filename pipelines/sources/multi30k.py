"""The problems `multi30k_ende`, `multi30k_deen` and `multi30k_enfr`: Multi30K's image captions.

They are in English, with translations into German (Elliott et al., 2016) and French (Elliott et
al., 2017). There are 29,000 training, 1,014 validation and 1,000 test pairs (the 2016 Flickr test
set), either as raw text or in the source repository's own lower-cased, normalised, Moses-tokenised
version.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import tensorflow_datasets as tfds

from pipelines.errors import BadInput
from pipelines.sources import text_files, tfds_source

# The repository is pinned to a commit, so neither addresses nor content change.
BASE_ADDRESS = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1"
)

_FILE_STEMS = {"train": "train", "dev": "val", "test": "test_2016_flickr"}

# SHA-256 of each English and German file's text, unpacked. The repository serves raw/ gzipped and
# tok/ plain; a digest of the text is valid for both, however they are compressed, so it is the only
# check. (TFDS's own checksums.tsv would digest the bytes as served.)
SHA256 = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "tok/train.lc.norm.tok.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
    "tok/train.lc.norm.tok.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    "tok/val.lc.norm.tok.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
    "tok/val.lc.norm.tok.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    "tok/test_2016_flickr.lc.norm.tok.en": (
        "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2"
    ),
    "tok/test_2016_flickr.lc.norm.tok.de": (
        "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4"
    ),
}

# The lines of each French file, as the repository's README has them. No digest was known when this
# was written, since the files could not be downloaded.
LINES = {
    "train.fr": 29_000,
    "val.fr": 1_014,
    "test_2016_flickr.fr": 1_000,
    "tok/train.lc.norm.tok.fr": 29_000,
    "tok/val.lc.norm.tok.fr": 1_014,
    "tok/test_2016_flickr.lc.norm.tok.fr": 1_000,
}


def examples(
    split: str, *, source: str, target: str, data_dir: str | None, tokenized: bool
) -> Iterator[dict[str, str]]:
    """Yield {"source", "target"} of one split, in the order of the files.

    Args:
        split: "train", "dev" or "test": 29,000, 1,014 or 1,000 pairs.
        source: The source language: "en", or "de" or "fr" with English as the target.
        target: The target language.
        data_dir: A directory with the text files (train.en, val.en, test_2016_flickr.en and their
            .de or .fr; tokenised: tok/train.lc.norm.tok.en and so on; each plain or .gz), which are
            read without a check of their content; or a directory in which TFDS has prepared the
            data set; or None, to download and prepare it once in TFDS's default directory.
        tokenized: Whether to read the lower-cased, tokenised version instead of the raw one.

    Raises:
        BadInput: `data_dir` contains neither, a file is unusable, or the download fails.
    """
    config = "tok" if tokenized else "raw"
    data_set = _DATA_SETS[source if target == "en" else target]
    if data_dir is None:
        builder = tfds_source.open_builder(data_set, config, None)
        tfds_source.prepare(builder)
        return tfds_source.examples(builder, split, source=source, target=target)
    wanted = [name for one in _FILE_STEMS for name in data_set.file_names(one, config)]
    if any(_find(data_dir, name).exists() for name in wanted):
        names = (_file_name(split, config, language) for language in (source, target))
        return text_files.aligned(*(_find(data_dir, name) for name in names))
    builder = tfds_source.open_builder(data_set, config, data_dir)
    if tfds_source.is_prepared(builder):
        return tfds_source.examples(builder, split, source=source, target=target)
    raise BadInput(
        f"--data_dir={data_dir}: holds no Multi30k ({config}); wanted {', '.join(wanted)} (each "
        f"plain or .gz) or {data_set.name}/ prepared by TFDS: download the files from "
        f"{BASE_ADDRESS}, or leave --data_dir out to download them automatically"
    )


class _Multi30k(  # type: ignore[call-arg]  # TFDS has no types
    tfds.core.GeneratorBasedBuilder, skip_registration=True
):
    """TFDS builder of one language pair: configs `raw` and `tok`; train, validation and test.

    Each example is {"en": text, OTHER: text}. Examples keep the order of the files. Preparation
    raises BadInput if a file cannot be downloaded or differs from the pinned commit's.
    """

    OTHER: ClassVar[str]
    CITATION: ClassVar[str]
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "multi30k/dataset at commit a3d2e0d."}  # noqa: RUF012
    BUILDER_CONFIGS = [  # noqa: RUF012
        tfds.core.BuilderConfig(name="raw", description="As written by the translators."),
        tfds.core.BuilderConfig(
            name="tok", description="Lower-cased, normalised punctuation, Moses tokens."
        ),
    ]

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=f"Captions of Flickr images in English, translated into {self.OTHER}.",
            features=tfds.features.Translation(languages=("en", self.OTHER)),
            supervised_keys=("en", self.OTHER),
            homepage="https://github.com/multi30k/dataset",
            citation=self.CITATION,
            disable_shuffling=True,
        )

    @classmethod
    def file_names(cls, split: str, config: str) -> tuple[str, str]:
        """Return the names of a split's English file and of the other one."""
        return _file_name(split, config, "en"), _file_name(split, config, cls.OTHER)

    def _split_generators(
        self, dl_manager: tfds.download.DownloadManager
    ) -> dict[str, Iterator[tuple[int, dict[str, str]]]]:
        names = {split: self.file_names(split, self.builder_config.name) for split in _FILE_STEMS}
        paths = _download(dl_manager, [name for pair in names.values() for name in pair])
        return {
            tfds_source.SPLITS[split]: self._generate_examples(paths[english], paths[other])
            for split, (english, other) in names.items()
        }

    def _generate_examples(
        self, english: Path, other: Path
    ) -> Iterator[tuple[int, dict[str, str]]]:
        for number, pair in enumerate(text_files.aligned(english, other)):
            yield number, {"en": pair["source"], self.OTHER: pair["target"]}


class Multi30kEnde(_Multi30k):
    """TFDS builder of `multi30k_ende` and `multi30k_deen`."""

    OTHER = "de"
    CITATION = """@inproceedings{elliott-etal-2016-multi30k,
  title = {Multi30K: Multilingual English-German Image Descriptions},
  author = {Elliott, Desmond and Frank, Stella and Sima'an, Khalil and Specia, Lucia},
  booktitle = {Proceedings of the 5th Workshop on Vision and Language},
  year = {2016},
  pages = {70--74},
}"""


class Multi30kEnfr(_Multi30k):
    """TFDS builder of `multi30k_enfr`."""

    OTHER = "fr"
    CITATION = """@inproceedings{elliott-etal-2017-findings,
  title = {Findings of the Second Shared Task on Multimodal Machine Translation and Multilingual
           Image Description},
  author = {Elliott, Desmond and Frank, Stella and Barrault, Lo{\\"i}c and Bougares, Fethi and
            Specia, Lucia},
  booktitle = {Proceedings of the Second Conference on Machine Translation},
  year = {2017},
  pages = {215--233},
}"""


_DATA_SETS: Mapping[str, type[_Multi30k]] = {"de": Multi30kEnde, "fr": Multi30kEnfr}


def _file_name(split: str, config: str, language: str) -> str:
    """Return the path of a file, relative to the data directory."""
    stem = _FILE_STEMS[split]
    return f"tok/{stem}.lc.norm.tok.{language}" if config == "tok" else f"{stem}.{language}"


def _address(name: str) -> str:
    """Return a file's address in the source repository: tok/ is plain, raw/ gzipped."""
    return f"{BASE_ADDRESS}/{name}" if name.startswith("tok/") else f"{BASE_ADDRESS}/raw/{name}.gz"


def _find(data_dir: str, name: str) -> Path:
    """Return the path of a file, plain or gzipped; the plain path if neither exists."""
    plain, gzipped = Path(data_dir, name), Path(data_dir, f"{name}.gz")
    return gzipped if gzipped.exists() and not plain.exists() else plain


def _download(
    dl_manager: tfds.download.DownloadManager, names: Sequence[str]
) -> Mapping[str, Path]:
    """Download files and check their content; return {name: local path}."""
    addresses = {name: _address(name) for name in names}
    try:
        tfds_source.ask(addresses[names[0]])
        paths = dl_manager.download(addresses)
    except tfds_source.DOWNLOAD_ERRORS as error:
        raise BadInput(
            f"Multi30k cannot be downloaded ({tfds_source.reason(error)}); wanted the files of "
            f"{addresses[names[0]].rpartition('/')[0]}: connect to the network, or obtain them "
            f"otherwise and give --data_dir=D, with D/{', D/'.join(names)} (each plain or .gz)"
        ) from error
    for name, path in paths.items():
        _check_content(path, name)
    return paths


def _check_content(path: Path, name: str) -> None:
    """Compare a downloaded file's text with what is known of it; delete a file that differs."""
    known = f"sha256 {SHA256[name]}" if name in SHA256 else f"{LINES[name]} lines"
    try:
        found = _content(path, name)
    except BadInput:
        found = "no end, being cut short or damaged"
    if found != known:
        # Otherwise TFDS would use the file from its cache in every later run.
        path.unlink()
        Path(f"{path}.INFO").unlink()
        raise BadInput(
            f"{_address(name)}: the downloaded text has {found}; wanted {known}: run again to "
            "download it again, or give the right files in --data_dir"
        )


def _content(path: Path, name: str) -> str:
    """Return the digest of a file's text, or its number of lines if no digest is known."""
    with text_files.open_bytes(path) as file:
        if name in SHA256:
            return f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"
        return f"{sum(1 for _ in file)} lines"
