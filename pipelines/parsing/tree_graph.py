"""The trees of `linear_trees` from a model's outputs, by graph operations on a whole batch.

An export contains no Python. `bracketed(sentences, outputs)` therefore computes by TensorFlow's
operations what `trees.bracketed(linear_trees.restored(output, words))` computes for one sentence;
`linear_trees` states the rules.

Axes: b sentences, w words, s symbols of an output; shorter rows are padded with "".
"""

from functools import partial

import tensorflow as tf

from pipelines.parsing.linear_trees import CLOSE, MARKS, OPEN, SPELT_WORD, UNKNOWN_TAG
from pipelines.parsing.trees import ROOT


def bracketed(sentences: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Return bracketed trees that have exactly the words of the sentences.

    Args:
        sentences: String [b]. ASCII white space separates the words. Brackets in words become -LRB-
            and -RRB-, as in treebanks, and bytes that are not UTF-8 become U+FFFD.
        outputs: String [b], a model's output for each sentence.

    Returns:
        String [b]; "" for a sentence without words.
    """
    words, symbols = _words(sentences), _split(tf.strings.regex_replace(outputs, "[()]", " "))
    spelt = tf.strings.regex_full_match(symbols, SPELT_WORD)  # [b, s]
    opens, closes = (~spelt & _begin(symbols, bracket) for bracket in (OPEN, CLOSE))  # [b, s]
    is_tag = (symbols != "") & ~opens & ~closes  # [b, s]
    wanted = _count(words != "")  # [b, 1]
    start, stop = _places(symbols, is_tag, spelt, words)  # [b, s]
    labels = tf.strings.regex_replace(symbols, f"^({OPEN}|{CLOSE})", "")  # [b, s]
    end = _ends(opens, closes, labels, start, wanted)
    seen = tf.reduce_max(tf.where(is_tag, stop, 0), axis=1, keepdims=True)  # [b, 1]
    end = tf.where((seen < wanted) & _first_of_the_last(end), wanted, end)
    holds_words = opens & (start < end)
    own = tf.where(is_tag, stop - start, 1)  # [b, s], number of words of each leaf
    aligned = tf.reduce_all(own == 1, axis=1, keepdims=True) & (_count(is_tag) == wanted)  # [b, 1]
    tags = tf.strings.regex_replace(symbols, f"^{SPELT_WORD}$", r"\2")
    tags = _at(is_tag & (own > 0), start, tags, words)
    tags = tf.where(aligned, tags, _corrected(tags, words))
    opening = _at(holds_words, start, " (" + labels, words)
    closing = _at(holds_words, end - 1, tf.fill(tf.shape(symbols), ")"), words)
    leaves = opening + " (" + tags + " " + words + ")" + closing  # [b, w]
    text = tf.strings.reduce_join(tf.where(words != "", leaves, ""), axis=1)  # [b]
    return tf.where(wanted[:, 0] > 0, f"({ROOT}" + text + ")", "")


def _words(sentences: tf.Tensor) -> tf.Tensor:
    """Split sentences into words, with brackets escaped: string [b] -> [b, w]."""
    text = tf.strings.unicode_transcode(sentences, "UTF-8", "UTF-8", errors="replace")
    text = tf.strings.regex_replace(text, "[(]", "-LRB-")
    return _split(tf.strings.regex_replace(text, "[)]", "-RRB-"))


def _split(text: tf.Tensor) -> tf.Tensor:
    """Split at ASCII white space: string [b] -> [b, n]."""
    return tf.strings.split(text).to_tensor("")


def _begin(symbols: tf.Tensor, prefix: str) -> tf.Tensor:
    return tf.strings.substr(symbols, 0, len(prefix)) == prefix


def _count(mask: tf.Tensor) -> tf.Tensor:
    """Count the true values of each row: bool [b, n] -> int32 [b, 1]."""
    return tf.reduce_sum(tf.cast(mask, tf.int32), axis=1, keepdims=True)


def _places(
    symbols: tf.Tensor, is_leaf: tf.Tensor, spelt: tf.Tensor, words: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the place of each symbol among the words; a leaf's words are [start, stop).

    Args:
        symbols: String [b, s].
        is_leaf: Bool [b, s], which symbols are not brackets.
        spelt: Bool [b, s], which leaves spell their word before the tag.
        words: String [b, w].

    Returns:
        start: Int32 [b, s], the number of words before each symbol.
        stop: Int32 [b, s], the number of words before the next leaf, or of all words.
    """
    number = tf.cumsum(tf.cast(is_leaf, tf.int32), axis=1, exclusive=True)  # [b, s] leaves before
    wanted = _count(words != "")  # [b, 1]
    counted = tf.minimum(number, wanted), tf.minimum(number + 1, wanted)

    def aligned() -> tuple[tf.Tensor, tf.Tensor]:
        match = _matches(tf.strings.regex_replace(symbols, f"^{SPELT_WORD}$", r"\1"), spelt, words)
        columns = tf.range(tf.shape(symbols)[1])  # [s]
        before = tf.where(match >= 0, columns, -1)
        before = tf.reduce_max(tf.where(columns[:, None] >= columns, before[:, None], -1), axis=2)
        offset = tf.gather(match - number, tf.maximum(before, 0), axis=1, batch_dims=1)  # [b, s]
        after = _next(tf.where(match >= 0, match, wanted), wanted)
        place = tf.minimum(number + tf.where(before >= 0, offset, 0), after)
        place = tf.where(is_leaf, place, wanted)
        stop = _next(place, wanted)
        start = tf.where(is_leaf, place, tf.where(number > 0, stop, 0))
        any_spelt = tf.reduce_any(spelt, axis=1, keepdims=True)  # [b, 1]
        return tuple(map(partial(tf.where, any_spelt), (start, stop), counted))

    return tf.cond(tf.reduce_any(spelt), aligned, lambda: counted)


def _next(values: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """Return, for each position, the least later value: [b, s]; `last` [b, 1] follows them all."""
    columns = tf.range(tf.shape(values)[1])
    behind = tf.where(columns[:, None] < columns, values[:, None], last[:, None])  # [b, s, s]
    return tf.minimum(tf.reduce_min(behind, axis=2), last)


def _matches(written: tf.Tensor, spelt: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Match spelt words with the sentence's, as `linear_trees._matches`: int32 [b, s], -1: none."""
    equal = (written[:, :, None] == words[:, None]) & spelt[:, :, None] & (words != "")[:, None]
    equal = tf.cast(equal, tf.int32)  # [b, s, w]
    columns = tf.range(tf.shape(words)[1])
    upto = columns[:, None] >= columns  # [w, w]

    def longer(row: tf.Tensor, equal: tf.Tensor) -> tf.Tensor:
        best = tf.maximum(row, tf.pad(row[:, :-1], [[0, 0], [1, 0]]) + equal)  # [b, w]
        return tf.reduce_max(tf.where(upto, best[:, None], 0), axis=2)

    rows = tf.scan(longer, tf.transpose(equal, [1, 0, 2]), tf.zeros_like(equal[:, 0]))  # [s, b, w]
    before = tf.concat([tf.zeros_like(rows[:1]), rows[:-1]], axis=0)

    def back(state: tuple[tf.Tensor, ...], both: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        limit, _ = state  # [b], words not yet matched
        row, above = (tf.pad(values, [[0, 0], [1, 0]]) for values in both)  # [b, w + 1]
        length = tf.gather(row, limit, axis=1, batch_dims=1)
        is_match = length > tf.gather(above, limit, axis=1, batch_dims=1)
        word = tf.reduce_sum(tf.cast(row < length[:, None], tf.int32), axis=1) - 1
        return tf.where(is_match, word, limit), tf.where(is_match, word, -1)

    begin = tf.fill([tf.shape(words)[0]], tf.shape(words)[1])
    _, match = tf.scan(back, (rows, before), (begin, begin), reverse=True)  # [s, b]
    return tf.transpose(match)


def _ends(
    opens: tf.Tensor, closes: tf.Tensor, labels: tf.Tensor, seen: tf.Tensor, wanted: tf.Tensor
) -> tf.Tensor:
    """Return the number of words before the end of each bracket, at the symbol that opens it.

    Args:
        opens: Bool [b, s], which symbols open a bracket.
        closes: Bool [b, s], which symbols close one.
        labels: String [b, s], the brackets' labels.
        seen: Int32 [b, s], the number of words before each symbol.
        wanted: Int32 [b, 1], the number of words; brackets that never close end there.

    Returns:
        Int32 [b, s], -1 for symbols that open no bracket.
    """
    names = tf.unique(tf.reshape(labels, [-1])).idx  # numbers compare faster than strings
    names = tf.reshape(names, tf.shape(labels))
    places = tf.range(tf.shape(labels)[1])  # [s]

    def step(place: tf.Tensor, opened: tf.Tensor, end: tf.Tensor) -> tuple[tf.Tensor, ...]:
        now = slice(place, place + 1)
        same = opened & closes[:, now] & (names == names[:, now])  # [b, s]
        innermost = tf.reduce_max(tf.where(same, places, -1), axis=1, keepdims=True)  # [b, 1]
        closed = opened & (innermost >= 0) & (places >= innermost)
        opened = opened & ~closed | opens & (places == place)
        return place + 1, opened, tf.where(closed, seen[:, now], end)

    state = 0, tf.zeros_like(opens), tf.fill(tf.shape(opens), -1)
    _, opened, end = tf.while_loop(lambda place, *_: place < tf.size(places), step, state)
    return tf.where(opened, wanted, end)


def _first_of_the_last(end: tf.Tensor) -> tf.Tensor:
    """Mark the first to open among the brackets that end last: `_ends` -> bool [b, s]."""
    is_last = (end >= 0) & (end == tf.reduce_max(end, axis=1, keepdims=True))
    return is_last & (tf.cumsum(tf.cast(is_last, tf.int32), axis=1) == 1)


def _at(mask: tf.Tensor, places: tf.Tensor, strings: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Join, for each word, the strings that are placed at it: [b, s] -> [b, w].

    Args:
        mask: Bool [b, s], which strings to join.
        places: Int32 [b, s], the word of each string; places beyond the last word are ignored.
        strings: String [b, s].
        words: String [b, w], of which only the shape is used.
    """
    rows, width = tf.unstack(tf.shape(words))
    numbers = tf.range(rows)[:, None] * width + places  # [b, s], counted over the whole batch
    meant = mask & (places < width)
    joined = tf.strings.unsorted_segment_join(strings[meant], numbers[meant], rows * width)
    return tf.reshape(joined, tf.shape(words))


def _corrected(tags: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Correct the tags [b, w] of outputs that do not fit one to one; "" is a missing tag."""
    marks, tags_of_marks = tf.constant(list(MARKS)), tf.constant(list(MARKS.values()))  # [n]
    own = tf.where(
        words[:, :, None] == marks, tags_of_marks, ""
    )  # [b, w, n], at most one is not ""
    own = tf.strings.reduce_join(own, axis=2)  # [b, w]
    wrong = tf.reduce_any(tags[:, :, None] == tags_of_marks, axis=2)
    return tf.where(own != "", own, tf.where(wrong | (tags == ""), UNKNOWN_TAG, tags))
