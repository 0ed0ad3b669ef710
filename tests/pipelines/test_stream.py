"""A stream's epoch: each pair of the files once, in an order that the seed decides."""

import gzip
from itertools import chain

import numpy as np
import pytest
import tensorflow as tf

from pipelines import stream
from pipelines.errors import BadInput
from pipelines.vocabulary import EOS
from t2t_repro.model import flops

pytestmark = pytest.mark.slow
LENGTH = 42  # leaves out some of the pairs
BUDGET = 600


@pytest.fixture(scope="module")
def texts(toy_pairs, tmp_path_factory):
    """Return the same pairs as files of each kind, in three files each."""
    folder = tmp_path_factory.mktemp("text")
    parts = [toy_pairs[:50], toy_pairs[50:60], toy_pairs[60:]]
    aligned, tabs, records = [], [], []
    for number, pairs in enumerate(parts):
        paths = folder / f"{number}.en", folder / f"{number}.de.gz"
        sides = ["".join(f"{pair[side]}\n" for pair in pairs) for side in ("source", "target")]
        paths[0].write_text(sides[0], encoding="utf-8")
        paths[1].write_bytes(gzip.compress(sides[1].encode()))
        aligned.append(tuple(map(str, paths)))
        path = folder / f"{number}.tsv"
        path.write_text("".join(f"{p['source']}\t{p['target']}\n" for p in pairs), "utf-8")
        tabs.append((str(path),))
        path = folder / f"{number}.tfrecord"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for pair in pairs:
                writer.write(example(en=pair["source"], de=pair["target"]))
        records.append((str(path),))
    return {
        "aligned": stream.AlignedFiles(tuple(aligned)),
        "tab-separated": stream.TabSeparatedFiles(tuple(tabs)),
        "TFRecord": stream.TFRecordFiles(tuple(records), source="en", target="de"),
    }


def example(**features):
    lists = {k: tf.train.BytesList(value=[v.encode()]) for k, v in features.items()}
    feature = {k: tf.train.Feature(bytes_list=v) for k, v in lists.items()}
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def stream_of(text, vocabulary, seed=1, **changes):
    lengths = stream.sample(text, vocabulary.graph_encoder(), seed, LENGTH)
    buckets = stream.choose(
        lengths, tokens_per_batch=BUDGET, max_shapes=8, count_padding=True, max_length=LENGTH
    )
    return stream.Stream(
        text, buckets, vocabulary.graph_encoder(), max_length=LENGTH, seed=seed, **changes
    )


def rows(batches):
    """Return all pairs of batches as text of ids."""
    return [
        (row[: np.count_nonzero(row)].tolist(), other[: np.count_nonzero(other)].tolist())
        for source, target in batches
        for row, other in zip(source.numpy(), target.numpy(), strict=True)
    ]


def expected(pairs, vocabulary):
    encoded = [tuple(vocabulary.encode(list(pair.values()))) for pair in pairs]
    return sorted(pair for pair in encoded if max(map(len, pair)) <= LENGTH)


@pytest.mark.parametrize("kind", ["aligned", "tab-separated", "TFRecord"])
def test_each_pair_once_in_batches_of_the_budget(texts, toy_pairs, toy_vocabulary, kind):
    batches = list(stream_of(texts[kind], toy_vocabulary).batches(epoch=0))
    found, wanted = rows(batches), expected(toy_pairs, toy_vocabulary)
    assert 200 < len(wanted) < len(toy_pairs)
    assert sorted(found) == wanted
    cells = [side.numpy().size for batch in batches for side in batch]
    assert max(cells) <= BUDGET
    assert sum(len(side) for pair in found for side in pair) > 0.8 * sum(cells)


def test_the_order_is_a_function_of_seed_and_epoch(texts, toy_vocabulary):
    first, second = (stream_of(texts["aligned"], toy_vocabulary) for _ in range(2))
    begun = rows(first.batches(epoch=0))
    assert rows(second.batches(epoch=0)) == begun
    other_seed = stream_of(texts["aligned"], toy_vocabulary, seed=2)
    for others in (rows(first.batches(epoch=1)), rows(other_seed.batches(epoch=0))):
        assert sorted(others) == sorted(begun)
        assert sum(one == other for one, other in zip(begun, others, strict=True)) < 30


@pytest.mark.parametrize("shards", [2, 5])  # by file, then by record
def test_shards_share_the_text(texts, toy_pairs, toy_vocabulary, shards):
    own = stream_of(texts["tab-separated"], toy_vocabulary)
    parts = [rows(own.dataset(0, shard, shards)) for shard in range(shards)]
    assert all(parts)
    assert sorted(chain.from_iterable(parts)) == expected(toy_pairs, toy_vocabulary)


def test_no_thread_tunes_the_dataset(texts, toy_vocabulary):
    dataset = stream_of(texts["aligned"], toy_vocabulary).dataset(epoch=0)
    assert not dataset.options().autotune.enabled


def test_bpe_dropout_ends_with_the_cool_down(texts, toy_pairs, toy_vocabulary):
    sampler = toy_vocabulary.graph_encoder(0.1)
    own = stream_of(texts["aligned"], toy_vocabulary, altered=sampler, altered_updates=10)
    altered = rows(own.for_epoch(1, updates_before=9).batches(1))
    plain = rows(own.for_epoch(2, updates_before=10).batches(2))
    assert sorted(plain) == expected(toy_pairs, toy_vocabulary)
    assert all(side[-1] == EOS for pair in altered for side in pair)
    texts_seen = {tuple(toy_vocabulary.decode(pair)) for pair in altered}
    assert texts_seen <= {tuple(toy_vocabulary.decode(pair)) for pair in plain}
    assert len(texts_seen) > 0.5 * len(plain)  # those that have grown too long are left out
    assert sum(pair in plain for pair in altered) < 0.2 * len(altered)


def test_files_that_no_longer_are_what_they_were_are_one_clear_error(toy_vocabulary, tmp_path):
    path = tmp_path / "text.en.gz"
    path.write_text("not compressed\n")
    text = stream.AlignedFiles(((str(path), str(path)),))
    with pytest.raises(BadInput, match=r"^training text: cannot be read any more \(.*inflate"):
        stream.sample(text, toy_vocabulary.graph_encoder(), 1, LENGTH)


def test_input_hosts_of_the_tf_data_service_share_an_epoch(texts, toy_pairs, toy_vocabulary):
    """The example of docs/data.md, with a dispatcher and two workers in this process."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.removeprefix("grpc://")
    workers = [service.WorkerServer(service.WorkerConfig(address)) for _ in range(2)]
    own = stream_of(texts["aligned"], toy_vocabulary)
    shards = 6
    batches = tf.data.Dataset.range(shards).flat_map(lambda shard: own.dataset(0, shard, shards))
    batches = batches.apply(
        service.distribute(processing_mode="distributed_epoch", service=dispatcher.target)
    )
    assert sorted(rows(batches)) == expected(toy_pairs, toy_vocabulary)
    del workers


def test_pairs_with_an_empty_side_are_left_out(toy_vocabulary, tmp_path):
    (path := tmp_path / "text.tsv").write_text("the house\tdas Haus\n\tdas Haus\nthe house\t\n")
    own = stream_of(stream.TabSeparatedFiles(((str(path),),)), toy_vocabulary)
    assert rows(own.batches(epoch=0)) == [tuple(toy_vocabulary.encode(["the house", "das Haus"]))]


def test_a_part_without_pairs_is_an_error_but_not_the_rest_of_an_epoch(toy_vocabulary, tmp_path):
    """A checkpoint may be of the last batch of an epoch."""
    (path := tmp_path / "text.tsv").write_text("the house\tdas Haus\n")
    text = stream.TabSeparatedFiles(((str(path),),))
    own = stream_of(text, toy_vocabulary, shard=1, shards=2)
    with pytest.raises(BadInput, match="part 1 of 2 has no pair"):
        list(own.batches(epoch=0))
    assert list(own.batches(epoch=0, first=3)) == []


def test_the_place_counts_the_positions_of_all_batches(texts, toy_vocabulary):
    own = stream_of(texts["aligned"], toy_vocabulary)
    shapes = [(*source.shape, target.shape[1]) for source, target in own.batches(epoch=0)]
    assert own.place.positions.numpy().tolist() == [*flops.positions(shapes)]
