"""The kinds of words in `toy_ende` and their endings; `lexicon.py` lists the words."""

from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from typing import Literal, NamedTuple

Case = Literal["nominative", "accusative", "dative"]
Endings = dict[Case, dict[str, str]]  # {case: {gender "der", "die", "das", or "plural": ending}}


class Person(IntEnum):
    """The person of a finite verb; in both languages "we" and "they" take the same form."""

    I = 0  # noqa: E741
    HE = 1
    THEY = 2


Forms = tuple[str, str, str]  # the forms of a verb, indexed by Person


class Pair(NamedTuple):
    """One text in both languages."""

    english: str
    german: str


def _by_case(nominative: str, accusative: str, dative: str) -> Endings:
    """Return endings by case; a row lists masculine, feminine, neuter and plural; "-" is none."""

    def row(text: str) -> dict[str, str]:
        endings = text.replace("-", "").split(" ")
        return dict(zip(("der", "die", "das", "plural"), endings, strict=True))

    return {"nominative": row(nominative), "accusative": row(accusative), "dative": row(dative)}


DEFINITE = _by_case("der die das die", "den die das die", "dem der dem den")
STRONG = _by_case("er e es e", "en e es e", "em er em en")
WEAK = _by_case("e e e en", "en e e en", "en en en en")
MIXED = _by_case("er e es en", "en e es en", "en en en en")
EIN = _by_case("- e - e", "en e - e", "em er em en")
NONE = _by_case("- - - -", "- - - -", "- - - -")


@dataclass(frozen=True)
class Determiner:
    """A determiner: German `stem` + `endings`, and the endings of adjectives that follow it."""

    english: str
    english_plural: str
    stem: str
    endings: Endings
    adjective_endings: Endings
    definite: bool = True


THE = Determiner("the", "the", "", DEFINITE, WEAK)
THIS = Determiner("this", "these", "dies", STRONG, WEAK)
MY = Determiner("my", "my", "mein", EIN, MIXED)
OUR = Determiner("our", "our", "unser", EIN, MIXED)
HIS = Determiner("his", "his", "sein", EIN, MIXED)
HER = Determiner("her", "her", "ihr", EIN, MIXED)
A = Determiner("a", "", "ein", EIN, MIXED, definite=False)
BARE = Determiner("", "", "", NONE, STRONG, definite=False)
# Replaces A and BARE in German under negation: "does not buy a book" is "kauft kein Buch".
NO = Determiner("", "", "kein", EIN, MIXED, definite=False)


@dataclass(frozen=True)
class Noun:
    """A noun and its article; a mass noun has no plural.

    `oblique` is the accusative and dative of a weak masculine noun: "der Junge", "den Jungen".
    """

    english: str
    english_plural: str
    article: str
    german: str
    german_plural: str = ""
    oblique: str = ""

    def german_form(self, case: Case, plural: bool) -> str:
        """Return a form; a dative plural adds -n unless it ends in -n or -s: "den Kindern"."""
        if plural:
            takes_n = case == "dative" and not self.german_plural.endswith(("n", "s"))
            return self.german_plural + "n" * takes_n
        return self.german if case == "nominative" else self.oblique or self.german


@dataclass(frozen=True)
class Adjective:
    """An adjective, and its stem before an ending: "teuer" has "teur", as in "teures"."""

    english: str
    german: str
    stem: str


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun, which is a noun phrase of one word."""

    person: Person
    subject: str
    object: str
    forms: dict[Case, str]
    definite: bool = True

    def english(self, case: Case) -> str:
        """Return the English form; English distinguishes the subject from all other cases."""
        return self.subject if case == "nominative" else self.object

    def german(self, case: Case) -> str:
        """Return the German form; German distinguishes all three cases."""
        return self.forms[case]


@dataclass(frozen=True)
class Verb:
    """A verb; its German forms lack the separable `prefix`: "rufen" with "an" is "anrufen".

    The German of the simple past is the perfect, as in speech, unless there is a `preterite`.
    `present` is given for verbs whose present is irregular in more than the third person.
    """

    english: str
    past: str
    infinitive: str
    third: str
    participle: str
    prefix: str = ""
    perfect: str = "haben"
    _: KW_ONLY
    present: Forms | None = None
    preterite: Forms | None = None

    def english_present(self, person: Person) -> str:
        """Return the present tense; the first word takes the -s: "turns on"."""
        if person != Person.HE:
            return self.english
        first, space, particle = self.english.partition(" ")
        return _third_person(first) + space + particle

    def german_present(self, person: Person) -> str:
        """Return the present tense without the prefix."""
        regular = (self.infinitive.removesuffix("en") + "e", self.third, self.infinitive)
        return (self.present or regular)[person]


def _third_person(verb: str) -> str:
    if verb == "have":
        return "has"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "sh", "ch", "x", "o")) else "s")


@dataclass(frozen=True)
class Auxiliary:
    """An auxiliary that governs an infinitive: the future or a modal verb."""

    english: Forms
    english_negated: Forms
    german: Forms


@dataclass(frozen=True)
class Group:
    """Nouns that share adjectives; nouns that are `owned` take possessives as well as "the"."""

    nouns: tuple[Noun, ...]
    adjectives: tuple[Adjective, ...]
    owned: bool = True

    @property
    def definite(self) -> tuple[Determiner, ...]:
        """The definite determiners to draw from; repetition is the weight."""
        return (THE, THE, THE, THIS, *((MY, OUR, HIS, HER) if self.owned else ()))


@dataclass(frozen=True)
class Preposition:
    """A preposition in one use: "in" is a place with the dative, a goal with the accusative."""

    english: str
    german: str
    case: Case
    groups: tuple[Group, ...]
