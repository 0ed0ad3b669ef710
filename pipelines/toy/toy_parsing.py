"""`toy_parsing`: a grammar that writes English sentences with their trees.

It is the demo of section 6.3: there is nothing to download, the trees have the Penn Treebank's
style, tags and labels, and the structure follows from the words but not from their order alone.
"With a hat" belongs to the noun before it and "with a friend" to the verb. "In the garden" belongs
to a noun if it stands before the verb, and to the verb if it stands after it. "And" joins nouns,
adjectives, predicates or clauses. A sentence has exactly one tree, so a model that has learnt the
grammar can approach an F1 of 100.

Expect sentences of 11 words on average and at most 16, including the full stop, and targets of 28
symbols on average. The words come from the lexicon of `toy_ende`.
"""

import random
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from pipelines.errors import BadInput
from pipelines.parsing.treebank import pair
from pipelines.parsing.trees import Leaf, Tree, parse
from pipelines.toy import lexicon
from pipelines.toy.words import THE, THIS, Group, Person, Preposition, Verb

# The held-out sentences are drawn first, so they can be read without drawing the training set.
SPLITS = {"test": (0, 500), "dev": (500, 1_000), "train": (1_000, 21_000)}
SEED = 2017
MAX_WORDS = 16


def examples(split: str) -> Iterator[dict[str, str]]:
    """Yield {"source": words, "target": tree}: 20,000 "train", 500 "dev" or 500 "test" sentences.

    The sentences are the same on every machine, and all 21,000 are distinct.

    Raises:
        BadInput: There is no such split (raised at once).
    """
    if split not in SPLITS:
        raise BadInput(f"toy_parsing has no split {split!r}; choose from {', '.join(SPLITS)}")
    return map(pair, islice(_distinct(random.Random(SEED)), *SPLITS[split]))


def _distinct(rng: random.Random) -> Iterator[Tree]:
    seen = set()
    while True:
        tree = sentence(rng)
        words = " ".join(tree.words)
        if words not in seen and len(tree.words) <= MAX_WORDS:
            seen.add(words)
            yield tree


def sentence(rng: random.Random) -> Tree:
    """Draw a sentence."""
    (form,) = rng.choices((_simple, _timed, _followed, _preceded, _reported, _joined), _FORMS)
    tree = parse(f"(TOP (S {form(rng)} (. .)))")
    words = re.sub(r"\ba(?= [aeiou])", "an", " ".join(tree.words))
    words = words[0].upper() + words[1:]
    tagged = zip(tree.leaves, words.split(), strict=True)
    return Tree(tuple(Leaf(leaf.tag, word) for leaf, word in tagged), tree.brackets)


# Sentences: the constituents under S. The functions below return bracketed text.

_FORMS = (8, 3, 3, 2, 4, 2)  # the weights of the sentence forms


def _simple(rng: random.Random) -> str:
    tense = _tense(rng)
    return _clause(rng, tense, _sometimes(rng, 0.3, _time(rng, tense)))


def _timed(rng: random.Random) -> str:
    tense = _tense(rng)
    return f"{_time(rng, tense)} (, ,) {_clause(rng, tense)}"


def _followed(rng: random.Random) -> str:
    """Draw a clause followed by a subordinate clause, which is part of the predicate."""
    tense = _tense(rng)
    return _clause(rng, tense, _background(rng, tense))


def _preceded(rng: random.Random) -> str:
    tense = _tense(rng)
    return f"{_background(rng, tense)} (, ,) {_clause(rng, tense)}"


def _background(rng: random.Random, tense: str) -> str:
    word = rng.choice(("because", "although", "while", "if"))
    return f"(SBAR (IN {word}) (S {_clause(rng, tense)}))"


def _reported(rng: random.Random) -> str:
    """Draw a sentence that reports what someone says, thinks or asks."""
    tense = rng.choice(("present", "past"))
    asked = rng.random() < 0.3
    verb = rng.choice((lexicon.ASK, lexicon.KNOW) if asked else lexicon.THINKING)
    subject = _subject(rng, rng.choice(lexicon.PEOPLE))
    report = f"(SBAR (IN {'whether' if asked else 'that'}) (S {_clause(rng, _tense(rng))}))"
    return f"{subject.text} {_predicate(rng, verb, tense, subject.person, report)}"


def _joined(rng: random.Random) -> str:
    first, second = _clause(rng, _tense(rng)), _clause(rng, _tense(rng))
    return f"(S {first}) (, ,) (CC {rng.choice(('and', 'but'))}) (S {second})"


# Clauses and predicates.


def _clause(rng: random.Random, tense: str, closing: str = "") -> str:
    """Draw a subject and a predicate, which ends with `closing`."""
    subject = _subject(rng, rng.choice(lexicon.PEOPLE))
    if rng.random() < 0.1:  # two predicates
        joined = " (CC and) ".join(_acts(rng, tense, subject.person) for _ in range(2))
        return f"{subject.text} (VP {joined})"
    return f"{subject.text} {_acts(rng, tense, subject.person, closing)}"


def _acts(rng: random.Random, tense: str, person: Person, closing: str = "") -> str:
    verb, complement = rng.choice(_COMPLEMENTS)(rng)
    # A relative clause would absorb `closing`, so nothing may follow it.
    return _predicate(rng, verb, tense, person, complement, "" if "WHNP" in complement else closing)


def _predicate(
    rng: random.Random, verb: Verb, tense: str, person: Person, *complements: str
) -> str:
    """Return a VP: the verb in its form, its particle if it has one, then the complements."""
    negated = rng.random() < 0.15
    rest = " ".join((_particle(verb), *complements))
    base = f"(VP (VB {verb.english.split()[0]}) {rest})"
    if tense not in ("present", "past"):
        return f"(VP (MD {tense}) {'(RB not)' if negated else ''} {base})"
    if verb is lexicon.BE:
        form, rest = lexicon.BE_FORMS[tense][person], f"{'(RB not)' if negated else ''} {rest}"
    elif negated:
        form, rest = lexicon.DO_FORMS[tense][person], f"(RB not) {base}"
    elif rng.random() < 0.1:
        form, rest = _form(rng.choice(_WANTING), tense, person), f"(S (VP (TO to) {base}))"
    else:
        form = _form(verb, tense, person)
    tag = "VBD" if tense == "past" else "VBZ" if person == Person.HE else "VBP"
    return f"(VP ({tag} {form}) {rest})"


def _form(verb: Verb, tense: str, person: Person) -> str:
    """Return the verb's form without its particle."""
    return (verb.past if tense == "past" else verb.english_present(person)).split()[0]


def _particle(verb: Verb) -> str:
    _, _, particle = verb.english.partition(" ")
    if particle == "asleep":
        return "(ADJP (JJ asleep))"
    return f"(PRT (RP {particle}))" if particle and particle not in _GOVERNING else ""


# Verbs with their complements: (verb, complement), one function per kind.


def _resting(rng: random.Random) -> tuple[Verb, str]:
    return rng.choice(lexicon.RESTING), _sometimes(rng, 0.4, _place(rng))


def _acting(rng: random.Random) -> tuple[Verb, str]:
    return rng.choice(lexicon.ACTING), _sometimes(rng, 0.6, rng.choice((_place, _company))(rng))


def _moving(rng: random.Random) -> tuple[Verb, str]:
    return rng.choice(lexicon.MOVING), _related(rng, rng.choice(lexicon.ROUTES))


def _handling(rng: random.Random) -> tuple[Verb, str]:
    verb, groups = rng.choice(lexicon.HANDLING)
    return verb, _object(rng, verb, rng.choice(groups))


def _meeting(rng: random.Random) -> tuple[Verb, str]:
    verb = rng.choice((*lexicon.MEETING, *lexicon.HELPING))
    return verb, _object(rng, verb, rng.choice(lexicon.PEOPLE))


def _giving(rng: random.Random) -> tuple[Verb, str]:
    receiver = _simple_phrase(rng, rng.choice(lexicon.PEOPLE)).text
    gift = _modified(rng, rng.choice((*lexicon.GOODS, lexicon.FOOD))).text
    return rng.choice(lexicon.GIVING), f"{receiver} {gift}"


def _being(rng: random.Random) -> tuple[Verb, str]:
    described = rng.choice((_described, _described, _place))
    return lexicon.BE, described(rng)


def _looking(rng: random.Random) -> tuple[Verb, str]:
    return lexicon.LOOK, _described(rng)


_COMPLEMENTS: tuple[Callable[[random.Random], tuple[Verb, str]], ...] = (
    *(_resting, _acting, _moving, _handling, _handling, _meeting, _giving, _being, _looking),
)
_WANTING = (Verb("want", "wanted", "", "", ""), Verb("hope", "hoped", "", "", ""))
_GOVERNING = ("for", "to")  # prepositions of an object, not particles: "look for the key"


def _object(rng: random.Random, verb: Verb, group: Group) -> str:
    """Draw an object, then a place or company unless a relative clause would absorb it."""
    people = group in lexicon.PEOPLE
    phrase = (_pronoun(rng) if people and rng.random() < 0.25 else _modified(rng, group)).text
    preposition = verb.english.partition(" ")[2]
    if preposition in _GOVERNING:
        phrase = f"(PP (IN {preposition}) {phrase})"
    if "WHNP" in phrase:
        return phrase
    return f"{phrase} {_sometimes(rng, 0.3, rng.choice((_place, _company))(rng))}"


def _described(rng: random.Random) -> str:
    one, other = rng.sample([adjective.english for adjective in lexicon.FEELINGS], 2)
    shapes = (f"(JJ {one})", f"(RB very) (JJ {one})", f"(JJ {one}) (CC and) (JJ {other})")
    return f"(ADJP {rng.choice(shapes)})"


# Noun phrases.


class _Phrase(NamedTuple):
    """A noun phrase, and the person with which the verb agrees."""

    text: str
    person: Person


def _subject(rng: random.Random, group: Group) -> _Phrase:
    if rng.random() < 0.3:
        return _pronoun(rng, subject=True)
    if rng.random() < 0.15:
        place = _related(rng, rng.choice(lexicon.PLACES))
        phrase = _simple_phrase(rng, group)
        return _Phrase(f"(NP {phrase.text} {place})", phrase.person)
    return _modified(rng, group)


def _pronoun(rng: random.Random, subject: bool = False) -> _Phrase:
    pronoun = rng.choice((*lexicon.FIRST_PERSON, *lexicon.THIRD_PERSON))
    word = pronoun.subject if subject else pronoun.object
    return _Phrase(f"(NP (PRP {word}))", pronoun.person)


def _modified(rng: random.Random, group: Group) -> _Phrase:
    """Draw a noun phrase: alone, with a PP, with a relative clause, or joined to another."""
    phrase = _simple_phrase(rng, group)
    shape = rng.random()
    if shape < 0.1:
        return _Phrase(f"(NP {phrase.text} {_belonging(rng, group)})", phrase.person)
    if shape < 0.2:
        return _Phrase(f"(NP {phrase.text} {_relative(rng, group, phrase.person)})", phrase.person)
    if shape < 0.3:
        joined = f"(NP {phrase.text} (CC and) {_simple_phrase(rng, group).text})"
        return _Phrase(joined, Person.THEY)
    return phrase


def _belonging(rng: random.Random, group: Group) -> str:
    """Draw a PP that belongs to the noun before it: people "with" things, things "of" people."""
    owner = group in lexicon.PEOPLE
    other = rng.choice((lexicon.CLOTHES, lexicon.BELONGINGS) if owner else lexicon.PEOPLE)
    return f"(PP (IN {'with' if owner else 'of'}) {_simple_phrase(rng, other).text})"


def _relative(rng: random.Random, group: Group, person: Person) -> str:
    tense = rng.choice(("present", "past"))
    if group in lexicon.PEOPLE:
        verb, complement = rng.choice((_resting, _moving, _looking))(rng)
        word = "(WP who)"
    else:
        adjective = rng.choice(group.adjectives).english
        verb, complement, word = lexicon.BE, f"(ADJP (JJ {adjective}))", "(WDT which)"
    predicate = _predicate(rng, verb, tense, person, complement)
    return f"(SBAR (WHNP {word}) (S {predicate}))"


def _simple_phrase(rng: random.Random, group: Group) -> _Phrase:
    """Draw a determiner or number, adjectives and a noun; `sentence` turns "a" into "an"."""
    noun = rng.choice(group.nouns)
    plural = bool(noun.german_plural) and rng.random() < 0.3
    tag, word = ("NNS", noun.english_plural) if plural else ("NN", noun.english)
    first = _determiner(rng, group, plural, countable=bool(noun.german_plural))
    person = Person.THEY if plural else Person.HE
    return _Phrase(f"(NP {first} {_adjectives(rng, group)} ({tag} {word}))", person)


def _determiner(rng: random.Random, group: Group, plural: bool, countable: bool) -> str:
    if countable and rng.random() < 0.3:
        number = lexicon.UNITS[rng.randrange(2, 13)].english
        return f"(CD {number})" if plural else "(DT a)"
    determiner = rng.choice(group.definite)
    word = determiner.english_plural if plural else determiner.english
    return f"({'DT' if determiner in (THE, THIS) else 'PRP$'} {word})"


def _adjectives(rng: random.Random, group: Group) -> str:
    one, other = (adjective.english for adjective in rng.sample(group.adjectives, 2))
    joined = f"(ADJP (JJ {one}) (CC and) (JJ {other}))"
    shapes = (f"(JJ {one})", f"(JJ {one})", f"(ADJP (RB very) (JJ {one}))", joined)
    return _sometimes(rng, 0.35, rng.choice(shapes))


# Places and times.


def _place(rng: random.Random) -> str:
    return _related(rng, rng.choice(lexicon.PLACES))


def _company(rng: random.Random) -> str:
    return f"(PP (IN with) {_simple_phrase(rng, rng.choice(lexicon.PEOPLE)).text})"


def _related(rng: random.Random, preposition: Preposition) -> str:
    phrase = _simple_phrase(rng, rng.choice(preposition.groups)).text
    if preposition.english == "in front of":
        return f"(PP (IN in) (NP (NP (NN front)) (PP (IN of) {phrase})))"
    if preposition.english == "next to":
        return f"(ADVP (RB next) (PP (IN to) {phrase}))"
    return f"(PP (IN {preposition.english}) {phrase})"


def _time(rng: random.Random, tense: str) -> str:
    weekday = f"(PP (IN on) (NP (NNP {rng.choice(lexicon.WEEKDAYS).english})))"
    return rng.choice((weekday, *_ANY_TIMES, *(_PAST_TIMES if tense == "past" else _COMING_TIMES)))


_ANY_TIMES = (
    *("(ADVP (RB today))", "(NP (DT this) (NN week))", "(PP (IN at) (NP (NN noon)))"),
    *("(PP (IN in) (NP (DT the) (NN morning)))", "(PP (IN in) (NP (NN winter)))"),
)
_PAST_TIMES = ("(ADVP (RB yesterday))", "(NP (JJ last) (NN year))")
_COMING_TIMES = ("(ADVP (RB tomorrow))", "(NP (JJ next) (NN year))")


def _tense(rng: random.Random) -> str:
    """Draw one of two tenses, or a modal verb."""
    return rng.choice(("present", "past", rng.choice(("will", "can", "should"))))


def _sometimes(rng: random.Random, share: float, text: str) -> str:
    return text if rng.random() < share else ""
