"""`toy_ende`: a synchronous grammar that writes English sentences with their German translations.

The demo trains on it: there is nothing to download, yet the translation has to be learnt. German
marks gender, case and number on articles and adjectives, puts the verb second in main clauses and
last in subordinate ones, splits separable verbs, and negates with "nicht" or "kein", so a
word-by-word translation would be wrong. The German is a function of the English; a model that has
learnt the grammar can therefore approach a sacreBLEU of 100 on sentences that it never saw.

Expect 498 word forms in English and 839 in German (lower-cased, split at hyphens), and sentences of
11 words on average in both languages, at most 20 in English.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from pipelines.errors import BadInput
from pipelines.toy import grammar, lexicon
from pipelines.toy.grammar import NOTHING, Clause, NounPhrase, Object, Phrase, Predicate, Tense
from pipelines.toy.words import BARE, A, Adjective, Auxiliary, Group, Noun, Pair, Preposition

# The held-out sentences are drawn first, so they can be read without drawing the training set.
SPLITS = {"test": (0, 500), "dev": (500, 1_000), "train": (1_000, 21_000)}
SEED = 2017
MAX_WORDS = 20  # of the English sentence


def examples(split: str) -> Iterator[dict[str, str]]:
    """Yield {"source": English, "target": German}: 20,000 "train", 500 "dev" or 500 "test" pairs.

    The pairs are the same on every machine, and all 21,000 sources are distinct.

    Raises:
        BadInput: There is no such split (raised at once).
    """
    if split not in SPLITS:
        raise BadInput(f"toy_ende has no split {split!r}; choose from {', '.join(SPLITS)}")
    pairs = islice(_distinct_sentences(random.Random(SEED)), *SPLITS[split])
    return ({"source": pair.english, "target": pair.german} for pair in pairs)


def _distinct_sentences(rng: random.Random) -> Iterator[Pair]:
    seen = set()
    while True:
        pair = sentence(rng)
        if pair.english not in seen and len(pair.english.split()) <= MAX_WORDS:
            seen.add(pair.english)
            yield pair


# The content of sentences: the functions below draw it, and leave word order to `grammar`.


def sentence(rng: random.Random) -> Pair:
    """Draw a sentence; half of all sentences have a subordinate clause."""
    (form,) = rng.choices((_simple, _subordinate, _reported, _coordinated), (8, 6, 4, 2))
    return grammar.finished(form(rng))


def _simple(rng: random.Random) -> Pair:
    main = _clause(rng, _tense(rng))
    return Pair(main.english(), main.german_main())


def _subordinate(rng: random.Random) -> Pair:
    """Draw two clauses, both past or neither past; no "will" follows "if" or "while"."""
    past = rng.random() < 0.4
    conjunction = rng.choice(lexicon.PAST_CONJUNCTIONS if past else lexicon.PRESENT_CONJUNCTIONS)
    main = _clause(rng, "past" if past else _present_or(rng, AUXILIARIES))
    background = _untimed_start(_clause(rng, "past" if past else _present_or(rng, lexicon.MODALS)))
    if rng.random() < 0.4:
        return grammar.preceded(_untimed_start(main), conjunction, background)
    return grammar.followed(main, conjunction, background)


def _reported(rng: random.Random) -> Pair:
    """Draw a sentence that reports what someone says, thinks or asks."""
    past, negated = rng.random() < 0.4, rng.random() < 0.2
    conjunction, verbs = rng.choice(lexicon.REPORTS)
    predicate = Predicate(rng.choice(verbs))
    speaker = _subject(rng, predicate, negated)
    report = _untimed_start(_clause(rng, "past" if past else _tense(rng)))
    speech = Clause(speaker, predicate, "past" if past else "present", negated)
    return grammar.followed(speech, conjunction, report)


def _coordinated(rng: random.Random) -> Pair:
    tense = _tense(rng)
    return grammar.coordinated(
        _clause(rng, tense), rng.choice(lexicon.COORDINATORS), _clause(rng, tense)
    )


def _untimed_start(clause: Clause) -> Clause:
    """Return the clause with no time in front; only a main clause that nothing precedes has one."""
    return replace(clause, time_first=False)


def _tense(rng: random.Random) -> Tense:
    return "past" if rng.random() < 0.4 else _present_or(rng, AUXILIARIES)


def _present_or(rng: random.Random, auxiliaries: tuple[Auxiliary, ...]) -> Tense:
    return "present" if rng.random() < 0.6 else rng.choice(auxiliaries)


def _clause(rng: random.Random, tense: Tense) -> Clause:
    """Draw a clause: a quarter are negated, a third have a time, which "be" never has."""
    negated = rng.random() < 0.25
    predicate = rng.choice(PREDICATES)(rng, negated)
    subject = _subject(rng, predicate, negated)
    if predicate.verb is lexicon.BE or rng.random() < 0.6:
        return Clause(subject, predicate, tense, negated)
    return Clause(subject, predicate, tense, negated, _time(rng, tense), rng.random() < 0.5)


def _subject(rng: random.Random, predicate: Predicate, negated: bool) -> Phrase:
    """Draw a subject; "I" never acts on "me", and no negated subject is indefinite ("a man")."""
    group = rng.choice(predicate.subjects)
    if group in lexicon.PEOPLE and rng.random() < 0.3:
        speaker_taken = any(phrase in lexicon.FIRST_PERSON for phrase, _ in predicate.objects)
        others = () if speaker_taken else lexicon.FIRST_PERSON
        return rng.choice((*lexicon.THIRD_PERSON, *others))
    shapes = (_definite,) if negated else (_definite, _definite, _single, _counted)
    return rng.choice(shapes)(rng, group)


# Predicates, one function per kind; `negated` restricts them to what can be negated.


def _resting(rng: random.Random, negated: bool) -> Predicate:
    verb, place = rng.choice(lexicon.RESTING), _sometimes(rng, lexicon.PLACES)
    return Predicate(verb, place=place, subjects=(*lexicon.PEOPLE, lexicon.ANIMALS))


def _acting(rng: random.Random, negated: bool) -> Predicate:
    place = _sometimes(rng, lexicon.PLACES + lexicon.COMPANY)
    return Predicate(rng.choice(lexicon.ACTING), place=place)


def _moving(rng: random.Random, negated: bool) -> Predicate:
    return Predicate(rng.choice(lexicon.MOVING), complement=_relation(rng, lexicon.ROUTES))


def _handling(rng: random.Random, negated: bool) -> Predicate:
    verb, groups = rng.choice(lexicon.HANDLING)
    place = _sometimes(rng, lexicon.PLACES)
    return Predicate(verb, (Object(_thing(rng, groups, negated), "accusative"),), place=place)


def _trading(rng: random.Random, negated: bool) -> Predicate:
    goods = Object(_thing(rng, lexicon.GOODS, negated), "accusative")
    euros = rng.choice((rng.randrange(10, 1_000, 10), rng.randrange(1_000, 10_000, 100)))
    return Predicate(rng.choice(lexicon.TRADING), (goods,), complement=grammar.price(euros))


def _placing(rng: random.Random, negated: bool) -> Predicate:
    verb, groups = rng.choice(lexicon.PLACING)
    thing = Object(_thing(rng, groups, negated), "accusative")
    return Predicate(verb, (thing,), complement=_relation(rng, lexicon.GOALS))


def _meeting(rng: random.Random, negated: bool) -> Predicate:
    person = Object(_person(rng, negated), "accusative")
    return Predicate(rng.choice(lexicon.MEETING), (person,), place=_sometimes(rng, lexicon.PLACES))


def _helping(rng: random.Random, negated: bool) -> Predicate:
    return Predicate(rng.choice(lexicon.HELPING), (Object(_person(rng, negated), "dative"),))


def _having(rng: random.Random, negated: bool) -> Predicate:
    groups = (*lexicon.GOODS, lexicon.ANIMALS)
    return Predicate(lexicon.HAVE, (Object(_thing(rng, groups, negated), "accusative"),))


def _giving(rng: random.Random, negated: bool) -> Predicate:
    pronoun = rng.random() < 0.25
    receiver = rng.choice(PRONOUNS) if pronoun else _definite(rng, rng.choice(lexicon.PEOPLE))
    gift = _thing(rng, (*lexicon.GOODS, lexicon.FOOD), negated)
    objects = (Object(receiver, "dative"), Object(gift, "accusative"))
    return Predicate(rng.choice(lexicon.GIVING), objects)


def _seeming(rng: random.Random, negated: bool) -> Predicate:
    group = rng.choice((*lexicon.PEOPLE, lexicon.ANIMALS, lexicon.CLOTHES, lexicon.SITES))
    adjective = rng.choice(group.adjectives)
    complement = Pair(adjective.english, adjective.german)
    return Predicate(
        rng.choice((lexicon.BE, lexicon.LOOK)), complement=complement, subjects=(group,)
    )


def _being_somewhere(rng: random.Random, negated: bool) -> Predicate:
    place = _relation(rng, lexicon.POSITIONS)
    return Predicate(lexicon.BE, place=place, subjects=(lexicon.PAPERS, lexicon.BELONGINGS))


def _aged(rng: random.Random, negated: bool) -> Predicate:
    years = grammar.number(rng.randrange(13, 100))
    complement = Pair(f"{years.english} years old", f"{years.german} Jahre alt")
    subjects = (*lexicon.PEOPLE, lexicon.LANDMARKS, lexicon.VEHICLES)
    return Predicate(lexicon.BE, complement=complement, subjects=subjects)


PREDICATES: tuple[Callable[[random.Random, bool], Predicate], ...] = (
    *(_resting, _acting, _moving, _handling, _handling, _trading, _placing, _meeting),
    *(_helping, _having, _giving, _seeming, _being_somewhere, _aged),
)
AUXILIARIES = (lexicon.WILL, *lexicon.MODALS)
PRONOUNS = (*lexicon.THIRD_PERSON, *lexicon.FIRST_PERSON)


# Noun phrases, places and times.


def _thing(rng: random.Random, groups: tuple[Group, ...], negated: bool) -> Phrase:
    """Draw an object; it has no count if negated: "not three books" leaves the number open."""
    shapes = (_definite, _single, _plural)
    return rng.choice(shapes if negated else (*shapes, _counted))(rng, rng.choice(groups))


def _person(rng: random.Random, negated: bool) -> Phrase:
    if rng.random() < 0.3:
        return rng.choice(PRONOUNS)
    return _thing(rng, lexicon.PEOPLE, negated)


def _definite(rng: random.Random, group: Group) -> NounPhrase:
    noun, adjective = _noun(rng, group)
    plural = bool(noun.german_plural) and rng.random() < 0.3
    return NounPhrase(rng.choice(group.definite), noun, adjective, plural)


def _single(rng: random.Random, group: Group) -> NounPhrase:
    noun, adjective = _noun(rng, group)
    return NounPhrase(A if noun.german_plural else BARE, noun, adjective)


def _plural(rng: random.Random, group: Group) -> NounPhrase:
    noun, adjective = _noun(rng, group)
    return NounPhrase(BARE, noun, adjective, plural=bool(noun.german_plural))


def _counted(rng: random.Random, group: Group) -> NounPhrase:
    """Draw a counted noun, mostly up to twelve; a mass noun gets no count."""
    phrase = _plural(rng, group)
    count = rng.randrange(2, 13) if rng.random() < 0.7 else rng.randrange(13, 100)
    return replace(phrase, count=count) if phrase.plural else phrase


def _noun(rng: random.Random, group: Group) -> tuple[Noun, Adjective | None]:
    adjective = rng.choice(group.adjectives) if rng.random() < 0.3 else None
    return rng.choice(group.nouns), adjective


def _relation(rng: random.Random, prepositions: tuple[Preposition, ...]) -> Pair:
    preposition = rng.choice(prepositions)
    phrase = rng.choice((_definite, _definite, _single))(rng, rng.choice(preposition.groups))
    return grammar.related(preposition, phrase)


def _sometimes(rng: random.Random, prepositions: tuple[Preposition, ...]) -> Pair:
    return _relation(rng, prepositions) if rng.random() < 0.3 else NOTHING


def _time(rng: random.Random, tense: Tense) -> Pair:
    """Draw a time that fits the tense: a phrase, weekday, clock time or, unless present, date."""
    kinds = (
        (_time_word, _weekday, _clock)
        if tense == "present"
        else (_time_word, _weekday, _clock, _date)
    )
    return rng.choice(kinds)(rng, tense)


def _time_word(rng: random.Random, tense: Tense) -> Pair:
    if tense == "present":
        return rng.choice(lexicon.ANY_TIMES)
    tensed = lexicon.PAST_TIMES if tense == "past" else lexicon.COMING_TIMES
    return rng.choice((*lexicon.ANY_TIMES, *tensed))


def _weekday(rng: random.Random, tense: Tense) -> Pair:
    day = rng.choice(lexicon.WEEKDAYS)
    hour = _clock(rng, tense) if rng.random() < 0.3 else NOTHING
    return Pair(
        grammar.join(f"on {day.english}", hour.english),
        grammar.join(f"am {day.german}", hour.german),
    )


def _clock(rng: random.Random, tense: Tense) -> Pair:
    return grammar.clock(rng.randrange(1, 13), rng.choice((0, 15, 30)))


def _date(rng: random.Random, tense: Tense) -> Pair:
    """Draw a date, with a day from 1 to 28, and with a year only in the past."""
    year = rng.randrange(1980, 2025) if tense == "past" else None
    return grammar.date(rng.randrange(1, 29), rng.randrange(1, 13), year)
