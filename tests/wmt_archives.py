"""Small archives laid out as WMT's, with other real text in place of each corpus."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import tensorflow_datasets as tfds
from paths import DATA

from pipelines.sources import wmt

EUROPARL = "http://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz"
CRAWL = "http://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz"
UN = "http://www.statmt.org/wmt13/training-parallel-un.tgz"
NEWS = "http://www.statmt.org/wmt14/training-parallel-nc-v9.tgz"
GIGA = "http://www.statmt.org/wmt10/training-giga-fren.tar"
DEV = "http://data.statmt.org/wmt19/translation-task/dev.tgz"

# The text in place of each corpus: (file name with {} for the language, number of first lines). No
# two have the same number of lines, and only LibreOffice's help repeats lines.
STAND_INS = {
    "de-en": {
        EUROPARL: ("libreoffice_help/train.en-de.{}.gz", 2000),
        CRAWL: ("wmt_train_sample/train.tok.{}.gz", 1000),
        NEWS: ("libreoffice_help/dev.en-de.{}", 990),
    },
    "fr-en": {
        EUROPARL: ("libreoffice_help/train.en-fr.{}.gz", 1900),
        CRAWL: ("wmt_news/newstest2010.{}", 1100),
        UN: ("wmt_news/newstest2009.{}", 800),  # has U+0085 inside lines
        NEWS: ("libreoffice_help/dev.en-fr.{}", 988),
        GIGA: ("wmt_news/newstest2011.{}", 700),
    },
}
INSIDE = {
    EUROPARL: "training/europarl-v7.{pair}.{language}",
    CRAWL: "commoncrawl.{pair}.{language}",
    UN: "un/undoc.2000.{pair}.{language}",
    NEWS: "training/news-commentary-v9.{pair}.{language}",
    GIGA: "giga-fren.release2.fixed.{language}.gz",
}


def lines(name, count=None):
    """Return the first lines of a real file, as bytes; only a line feed ends a line."""
    content = (DATA / name).read_bytes()
    content = gzip.decompress(content) if name.endswith(".gz") else content
    return content.removesuffix(b"\n").split(b"\n")[:count]


def sgm(texts):
    segments = (b'<seg id="%d">%s</seg>\n' % numbered for numbered in enumerate(texts, start=1))
    return b'<doc docid="1">\n<p>\n' + b"".join(segments) + b"</p>\n</doc>\n"


def sides(languages):
    return languages.removesuffix("-en"), "en"


def corpus_files(url, languages):
    """Return {name in the archive: content} of a corpus, with a pair that lacks each side."""
    name, count = STAND_INS[languages][url]
    other, english = (lines(name.format(side), count) for side in sides(languages))
    other, english = [*other, b"", b"ohne"], [*english, b"without", b""]
    files = {}
    for language, texts in zip(sides(languages), (other, english), strict=True):
        path = INSIDE[url].format(pair=languages, language=language)
        content = b"\n".join(texts) + b"\n"
        files[path] = gzip.compress(content) if path.endswith(".gz") else content
    return files


def dev_files(languages):
    """Return newstest2013 as plain text, and 2012 in place of newstest2014 as SGML."""
    other, _ = sides(languages)
    files = {f"dev/newstest2013.{s}": (DATA / f"wmt_news/newstest2013.{s}").read_bytes()
             for s in sides(languages)}  # fmt: skip
    for role, language in (("src", other), ("ref", "en")):
        path = f"dev/newstest2014-{other}en-{role}.{language}.sgm"
        files[path] = sgm(lines(f"wmt_news/newstest2012.{language}"))
    return files


def pack(url, files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w" if url.endswith(".tar") else "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def small_archives(languages):
    urls = STAND_INS[languages]
    packed = {url: pack(url, corpus_files(url, languages)) for url in urls}
    return packed | {DEV: pack(DEV, dev_files(languages))}


def builder(data_dir, languages="de-en"):
    return tfds.builder_cls(wmt.NAME)(config=languages, data_dir=str(data_dir))


def archive(data_dir, url, languages="de-en"):
    return next(a for a in wmt.archives(builder(data_dir, languages), languages) if a.url == url)


def put_into_cache(data_dir, archives, languages="de-en"):
    """Write archives and their .INFO files to TFDS's download cache."""
    for url, content in archives.items():
        known = archive(data_dir, url, languages)
        name = tfds.download.resource.get_dl_fname(url, known.sha256)
        path = data_dir / "downloads" / "wmt14_translate" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        info = {"size": known.size, "checksum": known.sha256, "filename": None}
        about = {"urls": [url], "url_info": info, "original_fname": url.rpartition("/")[2]}
        Path(f"{path}.INFO").write_text(json.dumps(about | {"dataset_names": [wmt.NAME]}))
