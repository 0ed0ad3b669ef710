"""The trees of `linear_trees`, from whatever a model wrote, by TensorFlow's own operations.

An export holds no Python. `bracketed(sentence, output)` is `trees.bracketed(linear_trees.restored(
output, words))`, where the rules are told, of a whole batch at once.

Axes: b sentences, w words, s symbols of an output; shorter rows end with "".
"""

import tensorflow as tf

from pipelines.linear_trees import CLOSE, MARKS, OPEN, SPELT_WORD, UNKNOWN_TAG
from pipelines.trees import ROOT


def bracketed(sentences: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Whole trees, in brackets, with exactly the words of the sentences.

    Args:
        sentences: String [b]. A word is what stands between ASCII's white space; a bracket in it is
            written as treebanks do, and what is not UTF-8 as U+FFFD.
        outputs: String [b], what a model wrote for each.

    Returns:
        String [b]; "" for a sentence without words.
    """
    words, symbols = _words(sentences), _split(tf.strings.regex_replace(outputs, "[()]", " "))
    spelt = tf.strings.regex_full_match(symbols, SPELT_WORD)  # [b, s]
    opens, closes = (~spelt & _begin(symbols, bracket) for bracket in (OPEN, CLOSE))  # [b, s]
    is_tag = (symbols != "") & ~opens & ~closes  # [b, s]
    said, wanted = _count(is_tag), _count(words != "")  # [b, 1]
    place = tf.cumsum(tf.cast(is_tag, tf.int32), axis=1, exclusive=True)  # [b, s] tags before
    start = tf.minimum(place, wanted)
    labels = tf.strings.regex_replace(symbols, f"^({OPEN}|{CLOSE})", "")  # [b, s]
    end = _ends(opens, closes, labels, start, wanted)
    end = tf.where((said < wanted) & _first_of_the_last(end), wanted, end)
    holds_words = opens & (start < end)
    tags = _at(is_tag, place, tf.strings.regex_replace(symbols, f"^{SPELT_WORD}$", r"\1"), words)
    tags = tf.where(said == wanted, tags, _realigned(tags, words))
    opening = _at(holds_words, start, " (" + labels, words)
    closing = _at(holds_words, end - 1, tf.fill(tf.shape(symbols), ")"), words)
    leaves = opening + " (" + tags + " " + words + ")" + closing  # [b, w]
    text = tf.strings.reduce_join(tf.where(words != "", leaves, ""), axis=1)  # [b]
    return tf.where(wanted[:, 0] > 0, f"({ROOT}" + text + ")", "")


def _words(sentences: tf.Tensor) -> tf.Tensor:
    """Strings [b] -> [b, w]."""
    text = tf.strings.unicode_transcode(sentences, "UTF-8", "UTF-8", errors="replace")
    text = tf.strings.regex_replace(text, "[(]", "-LRB-")
    return _split(tf.strings.regex_replace(text, "[)]", "-RRB-"))


def _split(text: tf.Tensor) -> tf.Tensor:
    """Strings [b] -> what stands between ASCII's white space, [b, n]."""
    return tf.strings.split(text).to_tensor("")


def _begin(symbols: tf.Tensor, prefix: str) -> tf.Tensor:
    return tf.strings.substr(symbols, 0, len(prefix)) == prefix


def _count(mask: tf.Tensor) -> tf.Tensor:
    """Bool [b, n] -> int32 [b, 1]."""
    return tf.reduce_sum(tf.cast(mask, tf.int32), axis=1, keepdims=True)


def _ends(
    opens: tf.Tensor, closes: tf.Tensor, labels: tf.Tensor, seen: tf.Tensor, wanted: tf.Tensor
) -> tf.Tensor:
    """Before which word each bracket ends, if at all it opens and closes.

    Args:
        opens: Bool [b, s], which symbols open a bracket.
        closes: Bool [b, s], which close one.
        labels: String [b, s], of what kind.
        seen: Int32 [b, s], the words before each symbol.
        wanted: Int32 [b, 1], the words of the sentence, where what never closes ends.

    Returns:
        Int32 [b, s], -1 for symbols that open no bracket.
    """
    names = tf.unique(tf.reshape(labels, [-1])).idx  # sooner compared than strings
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
    """Of the brackets that end last the one that opens first: bool [b, s] of `_ends`."""
    is_last = (end >= 0) & (end == tf.reduce_max(end, axis=1, keepdims=True))
    return is_last & (tf.cumsum(tf.cast(is_last, tf.int32), axis=1) == 1)


def _at(mask: tf.Tensor, places: tf.Tensor, strings: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Joins, for each word, the strings whose place it is: [b, s] -> [b, w].

    Args:
        mask: Bool [b, s], which strings are meant.
        places: Int32 [b, s], numbers of words; those beyond the last do not count.
        strings: String [b, s].
        words: String [b, w].
    """
    rows, width = tf.unstack(tf.shape(words))
    numbers = tf.range(rows)[:, None] * width + places  # [b, s], among all words
    meant = mask & (places < width)
    joined = tf.strings.unsorted_segment_join(strings[meant], numbers[meant], rows * width)
    return tf.reshape(joined, tf.shape(words))


def _realigned(tags: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Tags [b, w] where there were too many or too few; "" is one that is missing."""
    marks, tags_of_marks = tf.constant(list(MARKS)), tf.constant(list(MARKS.values()))  # [n]
    own = tf.where(words[:, :, None] == marks, tags_of_marks, "")  # [b, w, n], one of them at most
    own = tf.strings.reduce_join(own, axis=2)  # [b, w]
    wrong = tf.reduce_any(tags[:, :, None] == tags_of_marks, axis=2)
    return tf.where(own != "", own, tf.where(wrong | (tags == ""), UNKNOWN_TAG, tags))
