"""A tree as a string that a sequence-to-sequence model can write, and back.

    the words   The cat sleeps .
    the tree    (TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps)) (. .)))
    the target  openS openNP DT NN closeNP openVP VBZ closeVP . closeS

As in Vinyals et al. 2015 (arXiv:1412.7449), closing brackets name what they close. A word is
written as its part-of-speech tag, as in the authors' first code: words need not be spelt again,
since they are known from the source, where byte pairs leave none unknown; and tags can be scored,
which Vinyals's XX for every word could not. The label of a closing bracket is said twice, and that
is what a broken output is mended by. TOP is left out: every tree has it.

With `spell_words` the word comes before its tag:

    openS openNP The_DT cat_NN closeNP openVP sleeps_VBZ closeVP ._. closeS

so that a model knows where it is by copying, where it would have to count; a few thousand trees do
not teach it that (docs/results.md). The target is twice as long. On the way back the words serve to
find which word of the source each tag is of, where some were left out or said twice.

Brackets are spelt in letters because the tokeniser joins letters with letters only. "(NP" would
always be two pieces, and a target of the Wall Street Journal 99 pieces on average instead of 62. As
it is, a symbol is one piece if it is frequent.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence

from pipelines.parsing.trees import Bracket, Leaf, Tree, bracketed, rooted, symbols

# Penn's tag of a word that cannot be told, here of one that the output says nothing about.
UNKNOWN_TAG = "XX"
OPEN, CLOSE = "open", "close"
_SPELT = {"(": OPEN, ")": CLOSE}
# Nothing else can stand in a label or tag of a bracketed tree.
_SYMBOL = re.compile(r"[^()\s]+", re.ASCII)
SPELT_WORD = "(.+)_(.+)"  # and its tag; neither treebank that was at hand has _ in a label or tag
_spelt_word = re.compile(SPELT_WORD).fullmatch
# Marks that Penn tags in one way only.
MARKS = {",": ",", ".": ".", "?": ".", "!": ".", ":": ":", ";": ":", "--": ":", "...": ":"}
MARKS |= {"``": "``", "''": "''"}
# As other treebanks spell them. A plain " opens as often as it closes: EVALB deletes either tag.
MARKS |= {"“": "``", "”": "''", '"': "''", "…": ":", "—": ":"}


def linear(tree: Tree, spell_words: bool = False) -> str:
    """The target of a normalised tree."""

    def symbol(kind: str, item: Bracket | Leaf) -> str:
        if isinstance(item, Leaf):
            return f"{item.word}_{item.tag}" if spell_words else item.tag
        return _SPELT[kind] + item.label

    return " ".join(
        symbol(kind, item) for kind, item in symbols(Tree(tree.leaves, tree.brackets[1:]))
    )


def restored(text: str, words: Sequence[str]) -> Tree:
    """The tree with exactly these words that a target says, or comes nearest to saying.

    Whatever the text, there is one. A closing bracket also closes what is open inside of its own,
    and counts for nothing if it has none; brackets without a word are dropped. Where words are
    spelt, `_places` finds which are meant. Else words too many are cut off, and those missing go
    into the innermost bracket still open, or else into the outermost of those that end last. See
    `_tags` for the tags then.
    """
    symbols = _SYMBOL.findall(text)
    said = [leaf for leaf in map(_leaf, symbols) if leaf]
    places = _places([leaf.word for leaf in said], words)
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
    leaves = list(map(Leaf, _tags(said, places, words), words))
    return rooted(leaves, [b for b in brackets if b.start < b.end])


def _leaf(symbol: str) -> Leaf | None:
    """The tag, and the word if it is spelt; None of a bracket."""
    if spelt := _spelt_word(symbol):
        return Leaf(spelt[2], spelt[1])
    return None if symbol.startswith((OPEN, CLOSE)) else Leaf(symbol, "")


def _places(said: Sequence[str], words: Sequence[str]) -> list[int]:
    """Which word each leaf is, and last how many words there are up to the end.

    Leaves without a word of their own share the place of the next one. Words that were said and are
    there are matched, as many as can be in order. Between two of these, words are counted from the
    left: those too many have no place, and those missing go with the word before.
    """
    if not any(said):
        return [min(place, len(words)) for place in range(len(said) + 1)]
    match, places, place = _matches(said, words), [], 0
    for number in range(len(said)):
        places.append(match.get(number, place))
        place = places[-1] + 1
    limit = len(words)
    for number in reversed(range(len(said))):
        places[number] = min(places[number], limit)
        limit = match.get(number, limit)
    return [*places, len(words)]


def _matches(said: Sequence[str], words: Sequence[str]) -> dict[int, int]:
    """{number in `said`: number in `words`} of a longest common subsequence.

    Of several that which leaves out the last of `said`, and takes the first of `words`.
    """
    rows = [[0] * (len(words) + 1)]  # lengths for the first i of `said` and j of `words`
    for word in said:
        row = [0]
        for j, other in enumerate(words):
            row.append(max(row[j], rows[-1][j + 1], rows[-1][j] + (word == other)))
        rows.append(row)
    match, j = {}, len(words)
    for i in reversed(range(len(said))):
        if rows[i + 1][j] > rows[i][j]:
            j = match[i] = bisect_left(rows[i + 1], rows[i + 1][j]) - 1
    return match


def _tags(said: Sequence[Leaf], places: Sequence[int], words: Sequence[str]) -> list[str]:
    """A tag for each word: those that were said, if each has its word.

    Else tags may stand beside wrong words. Punctuation then gets its own tag, and no word one of
    punctuation: EVALB deletes by tag, and would leave out the sentence as one of other words.
    """
    tags = [UNKNOWN_TAG] * len(words)
    for leaf, start, end in zip(said, places, places[1:], strict=False):
        if start < end:
            tags[start] = leaf.tag
    if list(places) == list(range(len(words) + 1)):
        return tags
    return [
        MARKS.get(word, UNKNOWN_TAG if tag in MARKS.values() else tag)
        for tag, word in zip(tags, words, strict=True)
    ]


def _close(name: str, brackets: list[Bracket], opened: list[int], end: int) -> None:
    """Closes the innermost open bracket of that name and all that is open in it."""
    depths = [depth for depth, number in enumerate(opened) if brackets[number].label == name]
    while depths and len(opened) > depths[-1]:
        number = opened.pop()
        brackets[number] = brackets[number]._replace(end=end)


def are_linear(targets: Sequence[str]) -> bool:
    """Whether these are targets and not bracketed trees."""
    return not any("(" in target for target in targets)


def with_numbered_words(target: str, output: str) -> tuple[str, str]:
    """A target and a model's output for it, both as bracketed trees over the words 1, 2, 3 ...

    For scores of a run: its two trees have the same words, whatever they are. Punctuation stays
    what it is, as far as the target's tags tell. Words that the target spells are these.
    """
    leaves, marks = filter(None, map(_leaf, _SYMBOL.findall(target))), MARKS.values()
    words = [
        leaf.word or (leaf.tag if leaf.tag in marks else str(number))
        for number, leaf in enumerate(leaves, start=1)
    ]
    return bracketed(restored(target, words)), bracketed(restored(output, words))
