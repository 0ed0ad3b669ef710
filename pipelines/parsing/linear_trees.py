"""Trees as strings that a sequence-to-sequence model can write, and back.

    the words   The cat sleeps .
    the tree    (TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps)) (. .)))
    the target  openS openNP DT NN closeNP openVP VBZ closeVP . closeS

As in Vinyals et al. 2015 (arXiv:1412.7449), closing brackets name what they close. A word is
written as its part-of-speech tag, as in the first code of the paper's authors. The words are known
from the source, where byte pairs leave none unknown, so they need not be spelt again; and tags can
be scored, unlike the XX that Vinyals et al. write for every word. Labels of closing brackets are
redundant, and that redundancy is used to repair a malformed output. TOP is left out, because every
tree has it.

With `spell_words` the word comes before its tag:

    openS openNP The_DT cat_NN closeNP openVP sleeps_VBZ closeVP ._. closeS

The model then keeps its place by copying, where it would otherwise have to count, and a few
thousand trees do not teach it to count (docs/notebook/parsing.md). The target is twice as long.
When an output is read, its words serve to align its tags with the source if words are missing or
repeated.

Brackets are spelt in letters because the tokeniser joins letters only with letters. "(NP" would
always be two pieces, and a target of the Wall Street Journal would have 99 pieces on average
instead of 62. With letters, a frequent symbol is one piece.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence

from pipelines.parsing.trees import Bracket, Leaf, Tree, bracketed, rooted, symbols

# Penn's tag of a word whose part of speech is unknown; here, of a word that the output leaves out.
UNKNOWN_TAG = "XX"
OPEN, CLOSE = "open", "close"
_SPELT = {"(": OPEN, ")": CLOSE}
# The characters that a label or tag of a bracketed tree may hold.
_SYMBOL = re.compile(r"[^()\s]+", re.ASCII)
SPELT_WORD = "(.+)_(.+)"  # word and tag; no label or tag in GUM or NLTK's Penn sample has _
_spelt_word = re.compile(SPELT_WORD).fullmatch
# {punctuation mark: its tag}, for the marks to which Penn gives one tag only.
MARKS = {",": ",", ".": ".", "?": ".", "!": ".", ":": ":", ";": ":", "--": ":", "...": ":"}
MARKS |= {"``": "``", "''": "''"}
# The spellings of other treebanks. A plain " may open or close; EVALB deletes both tags.
MARKS |= {"“": "``", "”": "''", '"': "''", "…": ":", "—": ":"}


def linear(tree: Tree, spell_words: bool = False) -> str:
    """Return the target string of a normalised tree."""

    def symbol(kind: str, item: Bracket | Leaf) -> str:
        if isinstance(item, Leaf):
            return f"{_spelling(item.word)}_{item.tag}" if spell_words else item.tag
        return _SPELT[kind] + item.label

    return " ".join(
        symbol(kind, item) for kind, item in symbols(Tree(tree.leaves, tree.brackets[1:]))
    )


def _spelling(word: str) -> str:
    """Return a word so that it is one symbol of a target.

    The vocabulary applies NFKC, which makes a space of U+00A0 and a bracket of U+FF08. With "-" in
    their place the word matches none of the sentence, and gets its place by counting.
    """
    return re.sub(r"[()\s]", "-", unicodedata.normalize("NFKC", word))


def unwritable(tree: Tree) -> str | None:
    """Return a label or tag of a tree that a target cannot hold; None if there is none.

    It would be read as a word with its tag, or as a bracket.
    """
    tags = [leaf.tag for leaf in tree.leaves]
    wrong = [name for name in (*tags, *(bracket.label for bracket in tree.brackets)) if "_" in name]
    wrong += [tag for tag in tags if tag.startswith((OPEN, CLOSE))]
    return next(iter(wrong), None)


def tree_of(sentence: str, output: str) -> str:
    """Return the tree, as one line of brackets, over exactly the words of a sentence.

    Args:
        sentence: Words, separated by ASCII white space. Brackets in them become -LRB- and -RRB-, as
            in treebanks.
        output: A model's output for it.
    """
    escaped = sentence.replace("(", "-LRB-").replace(")", "-RRB-")
    return bracketed(restored(output, re.findall(r"\S+", escaped, re.ASCII)))


def restored(text: str, words: Sequence[str]) -> Tree:
    """Return the tree over exactly these words that a target describes, repaired if necessary.

    Every text yields a tree, by these rules. A closing bracket also closes the brackets that are
    open inside its own, and is ignored if no open bracket has its label. Brackets without a word
    are dropped. If the text spells words, `_places` aligns them with `words`. If not, surplus words
    are cut off, and missing words go into the innermost bracket still open, or else into the
    outermost of the brackets that end last. `_tags` sets the tags of a repaired tree.

    Args:
        text: A target, or a model's output.
        words: The sentence.
    """
    symbols = _SYMBOL.findall(text)
    written = [leaf for leaf in map(_leaf, symbols) if leaf]
    places = _places([leaf.word for leaf in written], words)
    brackets: list[Bracket] = []
    opened: list[int] = []
    count = 0  # of leaves
    for symbol in symbols:
        seen = places[count] if count else 0
        if _leaf(symbol):
            count += 1
        elif symbol.startswith(OPEN):
            opened.append(len(brackets))
            brackets.append(Bracket(symbol.removeprefix(OPEN), seen, -1))
        else:
            _close(symbol.removeprefix(CLOSE), brackets, opened, seen)
    for number in opened:
        brackets[number] = brackets[number]._replace(end=len(words))
    if places[-1] < len(words) and brackets:
        last = max(brackets, key=lambda bracket: bracket.end)  # the first of several
        brackets[brackets.index(last)] = last._replace(end=len(words))
    leaves = list(map(Leaf, _tags(written, places, words), words))
    return rooted(leaves, [b for b in brackets if b.start < b.end])


def _leaf(symbol: str) -> Leaf | None:
    """Return a symbol's tag, with its word if that is spelt, or None if it is a bracket."""
    if spelt := _spelt_word(symbol):
        return Leaf(spelt[2], spelt[1])
    return None if symbol.startswith((OPEN, CLOSE)) else Leaf(symbol, "")


def _places(written: Sequence[str], words: Sequence[str]) -> list[int]:
    """Return the index in `words` at which each leaf of the output starts, and last `len(words)`.

    A leaf that stands for no word has the start of the next leaf. Spelt words are matched with
    `words` in order, as many as possible. Between two matches, leaves are counted from the left:
    surplus leaves stand for no word, and missing words belong to the leaf before them.

    Args:
        written: The word that each leaf of the output spells, or "".
        words: The sentence.
    """
    if not any(written):
        return [min(place, len(words)) for place in range(len(written) + 1)]
    match, places, place = _matches(written, words), [], 0
    for number in range(len(written)):
        places.append(match.get(number, place))
        place = places[-1] + 1
    limit = len(words)
    for number in reversed(range(len(written))):
        places[number] = min(places[number], limit)
        limit = match.get(number, limit)
    return [*places, len(words)]


def _matches(written: Sequence[str], words: Sequence[str]) -> dict[int, int]:
    """Return a longest common subsequence as {index in `written`: index in `words`}.

    Among several, it is the one with late words of `written` left out and early words of `words`.
    """
    rows = [[0] * (len(words) + 1)]  # lengths for the first i of `written` and j of `words`
    for word in written:
        row = [0]
        for j, other in enumerate(words):
            row.append(max(row[j], rows[-1][j + 1], rows[-1][j] + (word == other)))
        rows.append(row)
    match, j = {}, len(words)
    for i in reversed(range(len(written))):
        if rows[i + 1][j] > rows[i][j]:
            j = match[i] = bisect_left(rows[i + 1], rows[i + 1][j]) - 1
    return match


def _tags(written: Sequence[Leaf], places: Sequence[int], words: Sequence[str]) -> list[str]:
    """Return a tag for each word: the output's tags, corrected unless they fit one to one.

    If leaves were surplus or missing, tags may stand beside wrong words. Punctuation then gets its
    own tag, and no other word gets a tag of punctuation: EVALB deletes leaves by tag, and would
    skip the sentence because its words differ from the reference's.
    """
    tags = [UNKNOWN_TAG] * len(words)
    for leaf, start, end in zip(written, places, places[1:], strict=False):
        if start < end:
            tags[start] = leaf.tag
    if list(places) == list(range(len(words) + 1)):
        return tags
    return [
        MARKS.get(word, UNKNOWN_TAG if tag in MARKS.values() else tag)
        for tag, word in zip(tags, words, strict=True)
    ]


def _close(name: str, brackets: list[Bracket], opened: list[int], end: int) -> None:
    """Close the innermost open bracket with this label, and all that are open inside it."""
    depths = [depth for depth, number in enumerate(opened) if brackets[number].label == name]
    while depths and len(opened) > depths[-1]:
        number = opened.pop()
        brackets[number] = brackets[number]._replace(end=end)


def are_linear(targets: Sequence[str]) -> bool:
    """Return whether the strings are targets rather than bracketed trees."""
    if any("(" in target for target in targets):
        return False
    return any(symbol.startswith(OPEN) for target in targets for symbol in target.split())


def with_numbered_words(target: str, output: str) -> tuple[str, str]:
    """Return a target and a model's output for it as bracketed trees over the words 1, 2, 3 ...

    This lets a run's outputs be scored without the sentence: both trees have the same words. A word
    that the target spells is kept, and a word with a tag of punctuation becomes that tag, by which
    `_tags` may repair an output that it could not repair with the word itself, such as "-".
    """
    leaves, marks = filter(None, map(_leaf, _SYMBOL.findall(target))), MARKS.values()
    words = [
        leaf.word or (leaf.tag if leaf.tag in marks else str(number))
        for number, leaf in enumerate(leaves, start=1)
    ]
    return bracketed(restored(target, words)), bracketed(restored(output, words))
