"""The grammar of toy_ende, compared with German written by hand."""

import hashlib
import itertools
import os
import random
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from pipelines.errors import BadInput
from pipelines.toy import grammar as grammar
from pipelines.toy import lexicon as toy_lexicon
from pipelines.toy import toy_ende
from pipelines.toy import words as toy_words
from pipelines.toy.grammar import Clause, NounPhrase, Object, Predicate
from pipelines.toy.words import Adjective, Case, Group, Noun, Pair, Verb


def _entries(kind: type) -> list:
    """Return all entries of one kind in the lexicon's tables, however deeply nested."""

    def walk(value: object) -> list:
        if isinstance(value, kind):
            return [value]
        if isinstance(value, Group):
            return walk((value.nouns, value.adjectives))
        return [entry for item in value for entry in walk(item)] if type(value) is tuple else []

    return walk(tuple(vars(toy_lexicon).values()))


NOUNS: dict[str, Noun] = {noun.english: noun for noun in _entries(Noun)}
VERBS: dict[str, Verb] = {verb.english: verb for verb in _entries(Verb)}
ADJECTIVES: dict[str, Adjective] = {
    adjective.english: adjective for adjective in _entries(Adjective)
}
I, WE = toy_lexicon.FIRST_PERSON  # noqa: E741
HE, SHE, THEY = toy_lexicon.THIRD_PERSON
WILL, (CAN, SHOULD, WANT, _) = toy_lexicon.WILL, toy_lexicon.MODALS
A, BARE, MY, NO, THE, THIS = (
    getattr(toy_words, name) for name in ("A", "BARE", "MY", "NO", "THE", "THIS")
)


def np(determiner, words: str, **number) -> NounPhrase:
    """Return a noun phrase from "adjective noun" or "noun", singular by default."""
    *adjective, noun = words.split()
    return NounPhrase(determiner, NOUNS[noun], *(ADJECTIVES[word] for word in adjective), **number)


def clause(subject, verb: str, *objects: tuple, tense="present", negated=False, **rest) -> Clause:
    """Return a clause; objects are (phrase, case), `place` and `complement` are the predicate's."""
    parts = {name: rest.pop(name) for name in ("place", "complement") if name in rest}
    predicate = Predicate(VERBS[verb], tuple(Object(*pair) for pair in objects), **parts)
    return Clause(subject, predicate, tense, negated, **rest)


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[Pair]]:
    return {
        split: [Pair(pair["source"], pair["target"]) for pair in toy_ende.examples(split)]
        for split in ("train", "dev", "test")
    }


@pytest.fixture(scope="module")
def pairs(corpus: dict[str, list[Pair]]) -> list[Pair]:
    return [pair for split in corpus.values() for pair in split]


class TestCorpus:
    def test_sizes(self, corpus):
        assert {split: len(pairs) for split, pairs in corpus.items()} == {
            "train": 20_000,
            "dev": 500,
            "test": 500,
        }

    def test_no_source_comes_twice_in_any_splits(self, pairs):
        assert len({pair.english for pair in pairs}) == 21_000

    def test_unknown_split_is_refused_before_the_first_pair(self):
        with pytest.raises(BadInput, match=r"'valid'.*test, dev, train"):
            toy_ende.examples("valid")

    def test_another_process_with_another_hash_seed_writes_the_same(self, pairs):
        program = (
            "import hashlib, pipelines.toy.toy_ende as toy\n"
            "text = [str(list(p.values())) for s in ('train', 'dev', 'test')"
            " for p in toy.examples(s)]\n"
            "print(hashlib.sha256(''.join(text).encode()).hexdigest())"
        )
        environment = {
            **os.environ,
            "PYTHONHASHSEED": "12345",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        there = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
        text = "".join(str(list(pair)) for pair in pairs)
        assert there.strip() == hashlib.sha256(text.encode()).hexdigest()

    @pytest.mark.parametrize(("language", "least"), [("english", 490), ("german", 800)])
    def test_word_forms(self, pairs, language, least):
        text = " ".join(getattr(pair, language) for pair in pairs).lower()
        assert len(set(re.findall(r"[^\W\d_]+", text))) >= least > 250

    def test_sentences_are_short(self, pairs):
        lengths = [len(pair.english.split()) for pair in pairs]
        assert max(lengths) <= 20
        assert 9 <= sum(lengths) / len(lengths) <= 12

    def test_every_english_sentence_has_one_german(self):
        rng, seen = random.Random(1), {}
        for pair in (toy_ende.sentence(rng) for _ in range(10_000)):
            assert seen.setdefault(pair.english, pair.german) == pair.german

    def test_sentences_are_sentences(self, pairs):
        for text in itertools.chain.from_iterable(pairs):
            assert re.fullmatch(r"[A-ZÄÖÜ](?!.*(  | ,|\.\.|None)).*[^ ,]\.", text), text


class TestCorpusRules:
    """Rules of German, checked on drawn sentences independently of the grammar's code."""

    @pytest.mark.parametrize(
        ("noun", "before"),
        [
            ("Tisch", "der den dem ein einen einem dieser diesen diesem kein keinen"),
            ("Küche", "die der eine einer diese dieser keine"),
            (
                "Mädchen",
                "das dem die den ein einem dieses diesem diese diesen kein keine keinem keinen",
            ),
            ("Städten", "den diesen"),
            ("Kollegin", "die der eine einer diese dieser keine keiner"),
        ],
    )
    def test_articles_fit_gender_and_number(self, pairs, noun, before):
        articles = {
            word.lower()
            for pair in pairs
            for word in re.findall(rf"(\w+) {noun}\b", pair.german)
            if re.fullmatch("d(er|ie|as|en|em)|(ein|kein|dies)(e|er|es|en|em)?", word.lower())
        }
        assert articles <= set(before.split())
        assert len(articles) > 1

    def test_separable_verbs_split_in_main_clauses_only(self, pairs):
        split = joined = 0
        for pair in (pair for pair in pairs if "ruf" in pair.german):
            for match in re.finditer(r"\bruf(?:e|t|en)\b([^,.]*?)(?=[,.]| und )", pair.german):
                assert match[1].endswith(" an"), pair.german
                split += 1
            for match in re.finditer(r"([^,.]*) anruf(?:e|t)\b(.)", pair.german):
                assert re.search(r"\b(weil|obwohl|während|wenn|dass|ob)\b", match[1], re.I), pair
                assert match[2] in ",.", pair.german
                joined += 1
        assert min(split, joined) >= 20

    def test_the_finite_verb_follows_a_date(self, pairs):
        dated = [
            pair.german for pair in pairs if re.match(r"On \w+ \d+\w\w, \d{4}, ", pair.english)
        ]
        finite = "habe|hat|haben|bin|ist|sind|hatten?|sah|sahen"
        assert len(dated) > 100
        for german in dated:
            assert re.match(rf"Am \d+\. \w+ \d{{4}} ({finite}) ", german), german

    def test_past_subordinate_clauses_end_with_the_finite_verb(self, pairs):
        """English "did not" is always past."""
        finite = "habe|hat|haben|bin|ist|sind|hatten?|sah|sahen|aussah|aussahen"
        clauses = [
            re.search(r", weil (.*)\.", pair.german)
            for pair in pairs
            if re.search(r"\w because .* did not ", pair.english)
        ]
        assert len(clauses) > 50
        for match in clauses:
            assert re.fullmatch(rf".* ({finite})", match[1]), match[0]


NOUN_PHRASES: list[tuple[NounPhrase, str, Case, str]] = [
    (np(THE, "old table"), "the old table", "nominative", "der alte Tisch"),
    (np(THE, "old table"), "the old table", "accusative", "den alten Tisch"),
    (np(THE, "old table"), "the old table", "dative", "dem alten Tisch"),
    (np(A, "old table"), "an old table", "nominative", "ein alter Tisch"),
    (np(A, "old table"), "an old table", "accusative", "einen alten Tisch"),
    (np(A, "apple"), "an apple", "accusative", "einen Apfel"),
    (np(A, "rich woman"), "a rich woman", "nominative", "eine reiche Frau"),
    (np(A, "rich woman"), "a rich woman", "dative", "einer reichen Frau"),
    (np(THIS, "expensive car"), "this expensive car", "accusative", "dieses teure Auto"),
    (np(MY, "expensive car"), "my expensive car", "accusative", "mein teures Auto"),
    (np(MY, "expensive car"), "my expensive car", "dative", "meinem teuren Auto"),
    (np(THE, "tired boy"), "the tired boy", "nominative", "der müde Junge"),
    (np(THE, "tired boy"), "the tired boy", "accusative", "den müden Jungen"),
    (np(THE, "sick child", plural=True), "the sick children", "dative", "den kranken Kindern"),
    (np(MY, "car", plural=True), "my cars", "dative", "meinen Autos"),
    (np(BARE, "small dog", plural=True), "small dogs", "accusative", "kleine Hunde"),
    (
        np(BARE, "sad dog", plural=True, count=21),
        "twenty-one sad dogs",
        "dative",
        "einundzwanzig traurigen Hunden",
    ),
    (np(BARE, "cold water"), "cold water", "accusative", "kaltes Wasser"),
    (np(BARE, "hot coffee"), "hot coffee", "accusative", "heißen Kaffee"),
    (np(NO, "fresh milk"), "fresh milk", "accusative", "keine frische Milch"),
]


@pytest.mark.parametrize(("phrase", "english", "case", "german"), NOUN_PHRASES)
def test_noun_phrases_agree(phrase, english, case, german):
    assert (phrase.english(case), phrase.german(case)) == (english, german)


THE_MAN, THE_WOMAN, THE_CHILD = np(THE, "man"), np(THE, "woman"), np(THE, "child")
A_BOOK = np(A, "book")
MONDAY = Pair("on Monday", "am Montag")
HE_CALLS_HER = clause(HE, "call", (SHE, "accusative"))

MAIN_CLAUSES: list[tuple[Clause, str, str]] = [
    (HE_CALLS_HER, "he calls her", "er ruft sie an"),
    (
        clause(THE_MAN, "call", (THE_WOMAN, "accusative"), negated=True, time=MONDAY),
        "the man does not call the woman on Monday",
        "der Mann ruft die Frau am Montag nicht an",
    ),
    (
        clause(I, "call", (THE_WOMAN, "accusative"), tense="past", time=MONDAY, time_first=True),
        "on Monday, I called the woman",
        "am Montag habe ich die Frau angerufen",
    ),
    (
        clause(WE, "call", (np(MY, "doctor"), "accusative"), tense=WANT, negated=True),
        "we do not want to call my doctor",
        "wir wollen meinen Arzt nicht anrufen",
    ),
    (
        clause(THE_MAN, "buy", (A_BOOK, "accusative"), negated=True),
        "the man does not buy a book",
        "der Mann kauft kein Buch",
    ),
    (
        clause(THEY, "buy", (np(BARE, "new book", plural=True), "accusative"), negated=True),
        "they do not buy new books",
        "sie kaufen keine neuen Bücher",
    ),
    (
        clause(THE_WOMAN, "give", (THE_CHILD, "dative"), (A_BOOK, "accusative"), time=MONDAY),
        "the woman gives the child a book on Monday",
        "die Frau gibt dem Kind am Montag ein Buch",
    ),
    (
        clause(SHE, "help", (np(THE, "poor friend"), "dative"), tense="past"),
        "she helped the poor friend",
        "sie hat dem armen Freund geholfen",
    ),
    (
        clause(np(THE, "child", plural=True), "get up", tense="past"),
        "the children got up",
        "die Kinder sind aufgestanden",
    ),
    (
        clause(THE_CHILD, "turn on", (np(THE, "lamp"), "accusative"), negated=True),
        "the child does not turn on the lamp",
        "das Kind schaltet die Lampe nicht ein",
    ),
    (
        clause(THE_CHILD, "turn on", (np(THE, "lamp"), "accusative"), tense=WILL),
        "the child will turn on the lamp",
        "das Kind wird die Lampe einschalten",
    ),
    (
        clause(np(THE, "house"), "be", complement=Pair("old", "alt"), negated=True),
        "the house is not old",
        "das Haus ist nicht alt",
    ),
    (
        clause(I, "be", complement=Pair("tired", "müde"), tense="past"),
        "I was tired",
        "ich war müde",
    ),
    (
        clause(np(BARE, "woman", plural=True, count=3), "look", complement=Pair("sad", "traurig")),
        "three women look sad",
        "drei Frauen sehen traurig aus",
    ),
    (clause(HE, "hurry", tense=CAN, negated=True), "he cannot hurry", "er kann nicht eilen"),
    (clause(SHE, "hurry"), "she hurries", "sie eilt"),
    (clause(THE_CHILD, "fall asleep"), "the child falls asleep", "das Kind schläft ein"),
]


@pytest.mark.parametrize(("main", "english", "german"), MAIN_CLAUSES)
def test_main_clauses(main, english, german):
    assert (main.english(), main.german_main()) == (english, german)


SUBORDINATE_CLAUSES: list[tuple[Clause, str]] = [
    (HE_CALLS_HER, "er sie anruft"),
    (replace(HE_CALLS_HER, tense="past", negated=True), "er sie nicht angerufen hat"),
    (replace(HE_CALLS_HER, tense=SHOULD), "er sie anrufen sollte"),
    (clause(THEY, "buy", (A_BOOK, "accusative"), negated=True), "sie kein Buch kaufen"),
    (clause(THE_CHILD, "stay", tense="past"), "das Kind geblieben ist"),
    (clause(I, "look", complement=Pair("sick", "krank"), tense="past"), "ich krank aussah"),
]


@pytest.mark.parametrize(("subordinate", "german"), SUBORDINATE_CLAUSES)
def test_subordinate_clauses_end_with_the_verb(subordinate, german):
    assert subordinate.german_subordinate() == german


def test_a_subordinate_clause_may_follow():
    pair = grammar.finished(
        grammar.followed(clause(SHE, "wake up"), toy_lexicon.BECAUSE, HE_CALLS_HER)
    )
    assert pair.english == "She wakes up because he calls her."
    assert pair.german == "Sie wacht auf, weil er sie anruft."


def test_a_subordinate_clause_in_front_takes_the_first_place():
    pair = grammar.finished(grammar.preceded(clause(SHE, "wake up"), toy_lexicon.IF, HE_CALLS_HER))
    assert pair.english == "If he calls her, she wakes up."
    assert pair.german == "Wenn er sie anruft, wacht sie auf."


def test_coordinated_clauses_both_have_the_verb_second():
    monday = clause(THE_MAN, "sleep", time=MONDAY, time_first=True)
    pair = grammar.finished(grammar.coordinated(HE_CALLS_HER, toy_lexicon.COORDINATORS[1], monday))
    assert pair.english == "He calls her, but on Monday, the man sleeps."
    assert pair.german == "Er ruft sie an, aber am Montag schläft der Mann."


def test_a_place_takes_the_dative_and_a_goal_the_accusative():
    """The prepositions "in" and "on" govern both cases; "in dem" and "in das" are contracted."""
    table, kitchen, house = (np(THE, noun) for noun in ("table", "kitchen", "house"))
    (on_place, _), (on_goal, *_) = toy_lexicon.POSITIONS, toy_lexicon.GOALS
    in_place, into = toy_lexicon.PLACES[0], toy_lexicon.ROUTES[0]
    assert grammar.related(on_place, table) == Pair("on the table", "auf dem Tisch")
    assert grammar.related(on_goal, table) == Pair("on the table", "auf den Tisch")
    assert grammar.related(in_place, house) == Pair("in the house", "im Haus")
    assert grammar.related(into, house) == Pair("into the house", "ins Haus")
    assert grammar.related(into, kitchen) == Pair("into the kitchen", "in die Küche")
    assert grammar.related(in_place, np(MY, "kitchen")) == Pair("in my kitchen", "in meiner Küche")


@pytest.mark.parametrize(
    ("rendered", "english", "german"),
    [
        (grammar.number(1), "one", "eins"),
        (grammar.number(16), "sixteen", "sechzehn"),
        (grammar.number(21), "twenty-one", "einundzwanzig"),
        (grammar.number(30), "thirty", "dreißig"),
        (grammar.number(77), "seventy-seven", "siebenundsiebzig"),
        (grammar.price(250), "for 250 euros", "für 250 Euro"),
        (grammar.price(1_200), "for 1,200 euros", "für 1.200 Euro"),
        (grammar.date(3, 3, 2015), "on March 3rd, 2015", "am 3. März 2015"),
        (grammar.date(1, 1), "on January 1st", "am 1. Januar"),
        (grammar.date(22, 10), "on October 22nd", "am 22. Oktober"),
        (grammar.date(12, 12), "on December 12th", "am 12. Dezember"),
        (grammar.clock(1, 0), "at one o'clock", "um ein Uhr"),
        (grammar.clock(3, 15), "at a quarter past three", "um Viertel nach drei"),
        (grammar.clock(3, 30), "at half past three", "um halb vier"),
        (grammar.clock(12, 30), "at half past twelve", "um halb eins"),
    ],
)
def test_numbers_dates_and_times(rendered, english, german):
    assert rendered == Pair(english, german)
