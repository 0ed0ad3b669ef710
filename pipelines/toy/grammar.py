"""The phrases and clauses of `toy_ende`, and how English and German render each of them."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pipelines.toy import lexicon
from pipelines.toy.words import (
    NO,
    Adjective,
    Auxiliary,
    Case,
    Determiner,
    Group,
    Noun,
    Pair,
    Person,
    Preposition,
    Pronoun,
    Verb,
)

Tense = Literal["present", "past"] | Auxiliary
NOTHING = Pair("", "")


def join(*parts: str) -> str:
    """Join the parts that are not empty with spaces."""
    return " ".join(part for part in parts if part)


# Numbers, dates and times.


def number(n: int) -> Pair:
    """Return 0 to 99 in words; from 21 on, German puts the units first: "einundzwanzig"."""
    if n < len(lexicon.UNITS):
        return lexicon.UNITS[n]
    tens, units = lexicon.TENS[n // 10], lexicon.UNITS[n % 10]
    if n % 10 == 0:
        return tens
    german_units = "ein" if n % 10 == 1 else units.german
    return Pair(f"{tens.english}-{units.english}", f"{german_units}und{tens.german}")


def price(euros: int) -> Pair:
    """Return a price in digits: "for 1,200 euros", "für 1.200 Euro"."""
    digits = f"{euros:,}"
    return Pair(f"for {digits} euros", f"für {digits.replace(',', '.')} Euro")


def date(day: int, month: int, year: int | None = None) -> Pair:
    """Return a date: "on March 3rd, 2015", "am 3. März 2015"."""
    name = lexicon.MONTHS[month - 1]
    suffix = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    english, german = f"on {name.english} {day}{suffix}", f"am {day}. {name.german}"
    return Pair(f"{english}, {year}", f"{german} {year}") if year else Pair(english, german)


def clock(hour: int, minute: Literal[0, 15, 30]) -> Pair:
    """Return a time; German names the next hour after a half: "half past three", "halb vier"."""
    now, following = lexicon.UNITS[hour], lexicon.UNITS[hour % 12 + 1]
    if minute == 30:
        return Pair(f"at half past {now.english}", f"um halb {following.german}")
    if minute == 15:
        return Pair(f"at a quarter past {now.english}", f"um Viertel nach {now.german}")
    return Pair(f"at {now.english} o'clock", f"um {'ein' if hour == 1 else now.german} Uhr")


# Phrases and clauses.


@dataclass(frozen=True)
class NounPhrase:
    """A noun with its determiner; a phrase with a `count` is plural."""

    determiner: Determiner
    noun: Noun
    adjective: Adjective | None = None
    plural: bool = False
    count: int | None = None

    @property
    def person(self) -> Person:
        """The person with which the verb agrees."""
        return Person.THEY if self.plural else Person.HE

    @property
    def definite(self) -> bool:
        """Whether German puts the phrase early in the clause, and negates with "nicht"."""
        return self.determiner.definite

    def english(self, case: Case) -> str:
        """Return the English phrase, which is the same in all cases."""
        determiner = self.determiner
        rest = join(
            number(self.count).english if self.count else "",
            self.adjective.english if self.adjective else "",
            self.noun.english_plural if self.plural else self.noun.english,
        )
        article = determiner.english_plural if self.plural else determiner.english
        return join("an" if article == "a" and rest[0] in "aeiou" else article, rest)

    def german(self, case: Case) -> str:
        """Return the German phrase; its words agree in gender, case and number."""
        determiner, adjective = self.determiner, self.adjective
        column = "plural" if self.plural else self.noun.article
        return join(
            determiner.stem + determiner.endings[case][column],
            number(self.count).german if self.count else "",
            adjective.stem + determiner.adjective_endings[case][column] if adjective else "",
            self.noun.german_form(case, self.plural),
        )


Phrase = NounPhrase | Pronoun


class Object(NamedTuple):
    """A phrase in the case that its verb governs."""

    phrase: Phrase
    case: Case


@dataclass(frozen=True)
class Predicate:
    """The predicate of a clause: the verb, its objects and complements.

    In the German clause, `place` comes before the indefinite objects, `complement` after them.
    """

    verb: Verb
    objects: tuple[Object, ...] = ()
    place: Pair = NOTHING
    complement: Pair = NOTHING
    subjects: tuple[Group, ...] = lexicon.PEOPLE


@dataclass(frozen=True)
class Clause:
    """A subject, a predicate and a time, rendered as a main or as a subordinate clause."""

    subject: Phrase
    predicate: Predicate
    tense: Tense = "present"
    negated: bool = False
    time: Pair = NOTHING
    time_first: bool = False

    def english(self) -> str:
        """Return the clause; its time comes last or, with a comma, first."""
        predicate, time = self.predicate, self.time.english
        return join(
            f"{time}," if self.time_first else "",
            self.subject.english("nominative"),
            english_verb(predicate.verb, self.tense, self.subject.person, self.negated),
            *(phrase.english(case) for phrase, case in predicate.objects),
            predicate.complement.english,
            predicate.place.english,
            "" if self.time_first else time,
        )

    def german_main(self, opening: str = "") -> str:
        """Return the main clause: the verb is second, so an opening moves the subject behind it."""
        finite, closing = german_verb(self.predicate.verb, self.tense, self.subject.person)
        opening = opening or (self.time.german if self.time_first else "")
        subject = self.subject.german("nominative")
        start = (opening, finite, subject) if opening else (subject, finite)
        return join(*start, *self._german_middle(), closing)

    def german_subordinate(self) -> str:
        """Return the subordinate clause: the verb is last, with its prefix: "weil er anruft"."""
        verb = self.predicate.verb
        finite, closing = german_verb(verb, self.tense, self.subject.person)
        final = closing + finite if closing == verb.prefix else f"{closing} {finite}"
        return join(self.subject.german("nominative"), *self._german_middle(), final)

    def _german_middle(self) -> list[str]:
        """Return known objects, time, "nicht", place, new objects; "kein" negates a new object."""
        predicate = self.predicate
        known = [phrase.german(case) for phrase, case in predicate.objects if phrase.definite]
        new = [
            (replace(phrase, determiner=NO) if self.negated else phrase).german(case)
            for phrase, case in predicate.objects
            if isinstance(phrase, NounPhrase) and not phrase.definite
        ]
        time = "" if self.time_first else self.time.german
        nicht = "nicht" if self.negated and not new else ""
        return [*known, time, nicht, predicate.place.german, *new, predicate.complement.german]


def related(preposition: Preposition, phrase: Phrase) -> Pair:
    """Return a preposition and its phrase; German may contract the article: "in dem" is "im"."""
    german = f"{preposition.german} {phrase.german(preposition.case)}"
    for apart, contracted in lexicon.CONTRACTIONS.items():
        if german.startswith(apart):
            german = contracted + german.removeprefix(apart)
    return Pair(f"{preposition.english} {phrase.english(preposition.case)}", german)


def english_verb(verb: Verb, tense: Tense, person: Person, negated: bool) -> str:
    """Return the verb, with do-support: "calls", "does not call", "cannot call", "is not"."""
    if isinstance(tense, Auxiliary):
        return join((tense.english_negated if negated else tense.english)[person], verb.english)
    if verb is lexicon.BE:
        return join(lexicon.BE_FORMS[tense][person], "not" if negated else "")
    if negated:
        return join(lexicon.DO_FORMS[tense][person], "not", verb.english)
    return verb.past if tense == "past" else verb.english_present(person)


def german_verb(verb: Verb, tense: Tense, person: Person) -> tuple[str, str]:
    """Return the finite verb and the clause's last word: "ruft" .. "an", "hat" .. "angerufen"."""
    if isinstance(tense, Auxiliary):
        return tense.german[person], verb.prefix + verb.infinitive
    if tense == "present":
        return verb.german_present(person), verb.prefix
    if verb.preterite:
        return verb.preterite[person], verb.prefix
    auxiliary = lexicon.BE if verb.perfect == "sein" else lexicon.HAVE
    return auxiliary.german_present(person), verb.prefix + verb.participle


def followed(main: Clause, conjunction: Pair, subordinate: Clause) -> Pair:
    """Return a main and a subordinate clause: "er wartet, weil sie schläft"."""
    return Pair(
        f"{main.english()} {conjunction.english} {subordinate.english()}",
        f"{main.german_main()}, {conjunction.german} {subordinate.german_subordinate()}",
    )


def preceded(main: Clause, conjunction: Pair, subordinate: Clause) -> Pair:
    """Return a main clause that the subordinate one opens: "weil sie schläft, wartet er"."""
    return Pair(
        f"{conjunction.english} {subordinate.english()}, {main.english()}",
        main.german_main(f"{conjunction.german} {subordinate.german_subordinate()},"),
    )


def coordinated(first: Clause, conjunction: Pair, second: Clause) -> Pair:
    """Return two main clauses, each with its verb second."""
    return Pair(
        f"{first.english()}{conjunction.english} {second.english()}",
        f"{first.german_main()}{conjunction.german} {second.german_main()}",
    )


def finished(pair: Pair) -> Pair:
    """Return a sentence: start with a capital letter and end with a full stop."""
    return Pair(*(f"{text[0].upper()}{text[1:]}." for text in pair))
