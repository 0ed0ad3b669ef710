"""What `toy_ende` can say, phrase by phrase and clause by clause, and how each language says it."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pipelines.toy import lexicon as lexicon
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
    """With spaces between the parts that are not empty."""
    return " ".join(part for part in parts if part)


# Numbers, dates and times.


def number(n: int) -> Pair:
    """0 to 99 in words; from 21 on German says the units first: "einundzwanzig"."""
    if n < len(lexicon.UNITS):
        return lexicon.UNITS[n]
    tens, units = lexicon.TENS[n // 10], lexicon.UNITS[n % 10]
    if n % 10 == 0:
        return tens
    german_units = "ein" if n % 10 == 1 else units.german
    return Pair(f"{tens.english}-{units.english}", f"{german_units}und{tens.german}")


def price(euros: int) -> Pair:
    """In digits: "1,200 euros" is "1.200 Euro"."""
    digits = f"{euros:,}"
    return Pair(f"for {digits} euros", f"für {digits.replace(',', '.')} Euro")


def date(day: int, month: int, year: int | None = None) -> Pair:
    """As in "on March 3rd, 2015", "am 3. März 2015"."""
    name = lexicon.MONTHS[month - 1]
    suffix = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    english, german = f"on {name.english} {day}{suffix}", f"am {day}. {name.german}"
    return Pair(f"{english}, {year}", f"{german} {year}") if year else Pair(english, german)


def clock(hour: int, minute: Literal[0, 15, 30]) -> Pair:
    """German counts half hours towards the next hour: "at half past three", "um halb vier"."""
    now, following = lexicon.UNITS[hour], lexicon.UNITS[hour % 12 + 1]
    if minute == 30:
        return Pair(f"at half past {now.english}", f"um halb {following.german}")
    if minute == 15:
        return Pair(f"at a quarter past {now.english}", f"um Viertel nach {now.german}")
    return Pair(f"at {now.english} o'clock", f"um {'ein' if hour == 1 else now.german} Uhr")


# Phrases and clauses.


@dataclass(frozen=True)
class NounPhrase:
    """A noun with its determiner; a `count` goes with the plural."""

    determiner: Determiner
    noun: Noun
    adjective: Adjective | None = None
    plural: bool = False
    count: int | None = None

    @property
    def person(self) -> Person:
        """What the verb agrees with."""
        return Person.THEY if self.plural else Person.HE

    @property
    def definite(self) -> bool:
        """Whether the phrase stands early in the German clause and leaves "nicht" alone."""
        return self.determiner.definite

    def english(self, case: Case) -> str:
        """The same in all cases."""
        determiner = self.determiner
        rest = join(
            number(self.count).english if self.count else "",
            self.adjective.english if self.adjective else "",
            self.noun.english_plural if self.plural else self.noun.english,
        )
        article = determiner.english_plural if self.plural else determiner.english
        return join("an" if article == "a" and rest[0] in "aeiou" else article, rest)

    def german(self, case: Case) -> str:
        """Article, adjective and noun agree in gender, case and number."""
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
    """What a clause says of its subject: the verb and what belongs to it.

    `place` stands before the indefinite objects of the German clause, `complement` after them.
    """

    verb: Verb
    objects: tuple[Object, ...] = ()
    place: Pair = NOTHING
    complement: Pair = NOTHING
    subjects: tuple[Group, ...] = lexicon.PEOPLE


@dataclass(frozen=True)
class Clause:
    """A subject, a predicate, and when; rendered as a main or as a subordinate clause."""

    subject: Phrase
    predicate: Predicate
    tense: Tense = "present"
    negated: bool = False
    time: Pair = NOTHING
    time_first: bool = False

    def english(self) -> str:
        """Subject, verb, objects, place; the time comes last or, with a comma, first."""
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
        """Verb second: whatever opens the clause, the subject makes room for it."""
        finite, closing = german_verb(self.predicate.verb, self.tense, self.subject.person)
        opening = opening or (self.time.german if self.time_first else "")
        subject = self.subject.german("nominative")
        start = (opening, finite, subject) if opening else (subject, finite)
        return join(*start, *self._german_middle(), closing)

    def german_subordinate(self) -> str:
        """Verb last; a separable prefix rejoins its verb there: "weil er die Frau anruft"."""
        verb = self.predicate.verb
        finite, closing = german_verb(verb, self.tense, self.subject.person)
        final = closing + finite if closing == verb.prefix else f"{closing} {finite}"
        return join(self.subject.german("nominative"), *self._german_middle(), final)

    def _german_middle(self) -> list[str]:
        """Known things, time, "nicht", place, new things; a new thing turns "nicht" into "kein"."""
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
    """The preposition sets the case, and may swallow the article: "in dem Haus" is "im Haus"."""
    german = f"{preposition.german} {phrase.german(preposition.case)}"
    for apart, contracted in lexicon.CONTRACTIONS.items():
        if german.startswith(apart):
            german = contracted + german.removeprefix(apart)
    return Pair(f"{preposition.english} {phrase.english(preposition.case)}", german)


def english_verb(verb: Verb, tense: Tense, person: Person, negated: bool) -> str:
    """With do-support: "calls", "does not call", "cannot call", "is not"."""
    if isinstance(tense, Auxiliary):
        return join((tense.english_negated if negated else tense.english)[person], verb.english)
    if verb is lexicon.BE:
        return join(lexicon.BE_FORMS[tense][person], "not" if negated else "")
    if negated:
        return join(lexicon.DO_FORMS[tense][person], "not", verb.english)
    return verb.past if tense == "past" else verb.english_present(person)


def german_verb(verb: Verb, tense: Tense, person: Person) -> tuple[str, str]:
    """The finite verb, and what closes the clause: "ruft" .. "an", "hat" .. "angerufen"."""
    if isinstance(tense, Auxiliary):
        return tense.german[person], verb.prefix + verb.infinitive
    if tense == "present":
        return verb.german_present(person), verb.prefix
    if verb.preterite:
        return verb.preterite[person], verb.prefix
    auxiliary = lexicon.BE if verb.perfect == "sein" else lexicon.HAVE
    return auxiliary.german_present(person), verb.prefix + verb.participle


def followed(main: Clause, conjunction: Pair, subordinate: Clause) -> Pair:
    """As in "He waits because she sleeps", "Er wartet, weil sie schläft"."""
    return Pair(
        f"{main.english()} {conjunction.english} {subordinate.english()}",
        f"{main.german_main()}, {conjunction.german} {subordinate.german_subordinate()}",
    )


def preceded(main: Clause, conjunction: Pair, subordinate: Clause) -> Pair:
    """The subordinate clause opens the main one: "Weil sie schläft, wartet er"."""
    return Pair(
        f"{conjunction.english} {subordinate.english()}, {main.english()}",
        main.german_main(f"{conjunction.german} {subordinate.german_subordinate()},"),
    )


def coordinated(first: Clause, conjunction: Pair, second: Clause) -> Pair:
    """Two main clauses, each with its verb second."""
    return Pair(
        f"{first.english()}{conjunction.english} {second.english()}",
        f"{first.german_main()}{conjunction.german} {second.german_main()}",
    )


def finished(pair: Pair) -> Pair:
    """A capital letter and a full stop."""
    return Pair(*(f"{text[0].upper()}{text[1:]}." for text in pair))
