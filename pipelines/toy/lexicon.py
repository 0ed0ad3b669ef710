"""The words of `toy_ende`; `grammar.py` arranges them.

In every context a word has one counterpart, and no English form has two readings (there is no
"you", and no "put" or "read", whose past looks like the present). A sentence therefore has exactly
one translation, and no choice that a model cannot know limits its score.
"""

from pipelines.toy.words import (
    Adjective,
    Auxiliary,
    Case,
    Forms,
    Group,
    Noun,
    Pair,
    Person,
    Preposition,
    Pronoun,
    Verb,
)


def _rows(table: str) -> list[list[str]]:
    """Split a table at ";" and spaces; in a field "_" stands for a space and "-" for nothing."""
    entries = (entry.split() for entry in table.split(";"))
    return [[field.strip("-").replace("_", " ") for field in entry] for entry in entries]


def _adjectives(table: str) -> tuple[Adjective, ...]:
    """Return adjectives; the third field is the stem if it differs from the German word."""
    return tuple(Adjective(row[0], row[1], row[-1]) for row in _rows(table))


def _pairs(table: str) -> tuple[Pair, ...]:
    return tuple(Pair(*row) for row in _rows(table))


def _group(adjectives: tuple[Adjective, ...], table: str, owned: bool = True) -> Group:
    return Group(tuple(Noun(*row) for row in _rows(table)), adjectives, owned)


def _verbs(table: str) -> tuple[Verb, ...]:
    return tuple(Verb(*row) for row in _rows(table))


def _pronouns(table: str) -> tuple[Pronoun, ...]:
    cases: tuple[Case, ...] = ("nominative", "accusative", "dative")
    return tuple(
        Pronoun(Person[person], subject, other, dict(zip(cases, german, strict=True)))
        for person, subject, other, *german in _rows(table)
    )


FIRST_PERSON = _pronouns("I I me ich mich mir; THEY we us wir uns uns")
THIRD_PERSON = _pronouns(
    "HE he him er ihn ihm; HE she her sie sie ihr; THEY they them sie sie ihnen"
)

FEELINGS = _adjectives("""
    young jung; friendly freundlich; happy glücklich; tired müde müd; clever klug; sick krank;
    rich reich; poor arm; sad traurig; strong stark; famous berühmt; curious neugierig""")
QUALITIES = _adjectives("""
    old alt; new neu; big groß; small klein; beautiful schön; expensive teuer teur; cheap billig;
    heavy schwer; clean sauber; red rot; blue blau; green grün; white weiß; black schwarz""")
STYLES = _adjectives("old alt; new neu; long lang; short kurz; beautiful schön; strange seltsam")
TASTES = _adjectives("cold kalt; hot heiß; fresh frisch; cheap billig; good gut")
VIEWS = _adjectives(
    "old alt; big groß; small klein; beautiful schön; dark dunkel dunkl; empty leer"
)

STRANGERS = _group(
    FEELINGS,
    """man men der Mann Männer; woman women die Frau Frauen; girl girls das Mädchen Mädchen;
    boy boys der Junge Jungen Jungen; king kings der König Könige;
    queen queens die Königin Königinnen; student students der Student Studenten Studenten""",
    owned=False,
)
FRIENDS = _group(
    FEELINGS,
    """child children das Kind Kinder; father fathers der Vater Väter; guest guests der Gast Gäste;
    mother mothers die Mutter Mütter; brother brothers der Bruder Brüder;
    sister sisters die Schwester Schwestern; friend friends der Freund Freunde;
    doctor doctors der Arzt Ärzte; teacher teachers die Lehrerin Lehrerinnen;
    neighbor neighbors der Nachbar Nachbarn Nachbarn; aunt aunts die Tante Tanten;
    colleague colleagues die Kollegin Kolleginnen""",
)
ANIMALS = _group(
    FEELINGS,
    """dog dogs der Hund Hunde; cat cats die Katze Katzen; horse horses das Pferd Pferde;
    bird birds der Vogel Vögel; mouse mice die Maus Mäuse""",
)
PAPERS = _group(
    STYLES,
    """book books das Buch Bücher; letter letters der Brief Briefe; poem poems das Gedicht Gedichte;
    report reports der Bericht Berichte; postcard postcards die Postkarte Postkarten""",
)
FOOD = _group(
    TASTES,
    """apple apples der Apfel Äpfel; egg eggs das Ei Eier; cake cakes der Kuchen Kuchen;
    orange oranges die Orange Orangen; potato potatoes die Kartoffel Kartoffeln""",
)
DRINKS = _group(
    TASTES,
    "coffee - der Kaffee; tea - der Tee; water - das Wasser; juice - der Saft; milk - die Milch",
)
CLOTHES = _group(
    QUALITIES,
    """coat coats der Mantel Mäntel; hat hats der Hut Hüte; jacket jackets die Jacke Jacken;
    shirt shirts das Hemd Hemden; dress dresses das Kleid Kleider; shoe shoes der Schuh Schuhe""",
)
BELONGINGS = _group(
    QUALITIES,
    """key keys der Schlüssel Schlüssel; bag bags die Tasche Taschen; ball balls der Ball Bälle;
    gift gifts das Geschenk Geschenke; picture pictures das Bild Bilder""",
)
VEHICLES = _group(
    QUALITIES,
    "car cars das Auto Autos; bicycle bicycles das Fahrrad Fahrräder; boat boats das Boot Boote",
)
DEVICES = _group(
    QUALITIES,
    """lamp lamps die Lampe Lampen; computer computers der Computer Computer;
    radio radios das Radio Radios; machine machines die Maschine Maschinen""",
)
OPENINGS = _group(
    QUALITIES,
    """door doors die Tür Türen; window windows das Fenster Fenster; box boxes die Kiste Kisten;
    suitcase suitcases der Koffer Koffer; umbrella umbrellas der Regenschirm Regenschirme""",
)
FURNITURE = _group(
    QUALITIES,
    """table tables der Tisch Tische; chair chairs der Stuhl Stühle; bed beds das Bett Betten;
    bench benches die Bank Bänke; shelf shelves das Regal Regale""",
)
ROOMS = _group(
    VIEWS,
    """kitchen kitchens die Küche Küchen; room rooms das Zimmer Zimmer;
    office offices das Büro Büros; cellar cellars der Keller Keller;
    garage garages die Garage Garagen""",
)
SITES = _group(
    VIEWS,
    """garden gardens der Garten Gärten; house houses das Haus Häuser; city cities die Stadt Städte;
    park parks der Park Parks; school schools die Schule Schulen; village villages das Dorf Dörfer;
    forest forests der Wald Wälder; hotel hotels das Hotel Hotels""",
    owned=False,
)
LANDMARKS = _group(
    VIEWS,
    """church churches die Kirche Kirchen; station stations der Bahnhof Bahnhöfe;
    museum museums das Museum Museen; bridge bridges die Brücke Brücken""",
    owned=False,
)
PEOPLE = (STRANGERS, FRIENDS)
GOODS = (PAPERS, CLOTHES, BELONGINGS, VEHICLES, DEVICES, FURNITURE)
EVERYTHING = (*PEOPLE, ANIMALS, *GOODS, OPENINGS)

HAVE = Verb("have", "had", "haben", "hat", "gehabt", preterite=("hatte", "hatte", "hatten"))
BE = Verb(
    *("be", "was", "sein", "ist", "gewesen"),
    perfect="sein",
    present=("bin", "ist", "sind"),
    preterite=("war", "war", "waren"),
)
# English forms by tense, and the auxiliary of negation: "is not", but "does not have".
BE_FORMS: dict[str, Forms] = {"present": ("am", "is", "are"), "past": ("was", "was", "were")}
DO_FORMS: dict[str, Forms] = {"present": ("do", "does", "do"), "past": ("did", "did", "did")}
KNOW = Verb(
    *("know", "knew", "wissen", "weiß", "gewusst"),
    present=("weiß", "weiß", "wissen"),
    preterite=("wusste", "wusste", "wussten"),
)
LOOK = Verb(
    *("look", "looked", "sehen", "sieht", "gesehen"),
    prefix="aus",
    preterite=("sah", "sah", "sahen"),
)
ASK = Verb("ask", "asked", "fragen", "fragt", "gefragt")
THINKING = (
    KNOW,
    *_verbs("""
    say said sagen sagt gesagt; believe believed glauben glaubt geglaubt;
    hope hoped hoffen hofft gehofft"""),
)
ACTING = _verbs("""
    work worked arbeiten arbeitet gearbeitet; sing sang singen singt gesungen;
    dance danced tanzen tanzt getanzt; play played spielen spielt gespielt;
    cook cooked kochen kocht gekocht""")
RESTING = _verbs("""
    sleep slept schlafen schläft geschlafen; stay stayed bleiben bleibt geblieben - sein;
    wake_up woke_up wachen wacht gewacht auf sein; get_up got_up stehen steht gestanden auf sein;
    fall_asleep fell_asleep schlafen schläft geschlafen ein sein;
    arrive arrived kommen kommt gekommen an sein""")
MOVING = _verbs("""
    go went gehen geht gegangen - sein; run ran laufen läuft gelaufen - sein;
    come came kommen kommt gekommen - sein; hurry hurried eilen eilt geeilt - sein""")
TRADING = _verbs("buy bought kaufen kauft gekauft; sell sold verkaufen verkauft verkauft")
MEETING = _verbs("""
    visit visited besuchen besucht besucht; greet greeted grüßen grüßt gegrüßt;
    understand understood verstehen versteht verstanden; meet met treffen trifft getroffen;
    call called rufen ruft gerufen an; invite invited laden lädt geladen ein;
    fetch fetched holen holt geholt ab; introduce introduced stellen stellt gestellt vor""")
HELPING = _verbs("""
    help helped helfen hilft geholfen; thank thanked danken dankt gedankt;
    answer answered antworten antwortet geantwortet; trust trusted vertrauen vertraut vertraut;
    follow followed folgen folgt gefolgt - sein; listen_to listened_to hören hört gehört zu;
    congratulate congratulated gratulieren gratuliert gratuliert""")
GIVING = _verbs("""
    give gave geben gibt gegeben; show showed zeigen zeigt gezeigt;
    send sent schicken schickt geschickt; bring brought bringen bringt gebracht""")
LAY, PLACE = _verbs("lay laid legen legt gelegt; place placed stellen stellt gestellt")
PLACING = ((LAY, (PAPERS, CLOTHES, BELONGINGS)), (PLACE, (DEVICES,)))
HANDLING = tuple(
    (verb, groups)
    for table, groups in (
        ("write wrote schreiben schreibt geschrieben", (PAPERS,)),
        ("eat ate essen isst gegessen", (FOOD,)),
        ("drink drank trinken trinkt getrunken", (DRINKS,)),
        ("wear wore tragen trägt getragen", (CLOTHES,)),
        ("try_on tried_on probieren probiert probiert an", (CLOTHES,)),
        ("open opened machen macht gemacht auf", (OPENINGS,)),
        ("close closed machen macht gemacht zu", (OPENINGS,)),
        ("turn_on turned_on schalten schaltet geschaltet ein", (DEVICES,)),
        ("turn_off turned_off schalten schaltet geschaltet aus", (DEVICES,)),
        ("clean_up cleaned_up räumen räumt geräumt auf", (ROOMS,)),
        ("see saw sehen sieht gesehen", EVERYTHING),
        ("look_for looked_for suchen sucht gesucht", EVERYTHING),
        ("find found finden findet gefunden", GOODS),
        ("lose lost verlieren verliert verloren", (PAPERS, BELONGINGS)),
        ("bring_along brought_along bringen bringt gebracht mit", (FOOD, DRINKS, PAPERS)),
    )
    for verb in _verbs(table)
)

WILL = Auxiliary(("will",) * 3, ("will not",) * 3, ("werde", "wird", "werden"))
MODALS = (
    Auxiliary(("can",) * 3, ("cannot",) * 3, ("kann", "kann", "können")),
    Auxiliary(("should",) * 3, ("should not",) * 3, ("sollte", "sollte", "sollten")),
    Auxiliary(
        ("want to", "wants to", "want to"),
        ("do not want to", "does not want to", "do not want to"),
        ("will", "will", "wollen"),
    ),
    Auxiliary(
        ("have to", "has to", "have to"),
        ("do not have to", "does not have to", "do not have to"),
        ("muss", "muss", "müssen"),
    ),
)

PLACES = (
    Preposition("in", "in", "dative", (ROOMS, SITES)),
    Preposition("behind", "hinter", "dative", (LANDMARKS,)),
    Preposition("in front of", "vor", "dative", (LANDMARKS,)),
    Preposition("next to", "neben", "dative", (LANDMARKS,)),
)
POSITIONS = (
    Preposition("on", "auf", "dative", (FURNITURE,)),
    Preposition("under", "unter", "dative", (FURNITURE,)),
)
GOALS = (
    Preposition("on", "auf", "accusative", (FURNITURE,)),
    Preposition("under", "unter", "accusative", (FURNITURE,)),
    Preposition("next to", "neben", "accusative", (FURNITURE, OPENINGS)),
)
ROUTES = (
    Preposition("into", "in", "accusative", (ROOMS, SITES)),
    Preposition("through", "durch", "accusative", (SITES,)),
    Preposition("to", "zu", "dative", (LANDMARKS, FRIENDS)),
)
COMPANY = (
    Preposition("with", "mit", "dative", (*PEOPLE, ANIMALS)),
    Preposition("without", "ohne", "accusative", PEOPLE),
    Preposition("for", "für", "accusative", PEOPLE),
)
# "im alten Haus", "zur Lehrerin": a preposition and an unstressed article are one word.
CONTRACTIONS = {"in dem ": "im ", "in das ": "ins ", "zu dem ": "zum ", "zu der ": "zur "}

UNITS = _pairs("""
    zero null; one eins; two zwei; three drei; four vier; five fünf; six sechs; seven sieben;
    eight acht; nine neun; ten zehn; eleven elf; twelve zwölf; thirteen dreizehn;
    fourteen vierzehn; fifteen fünfzehn; sixteen sechzehn; seventeen siebzehn;
    eighteen achtzehn; nineteen neunzehn""")
TENS = _pairs("""
    - -; - -; twenty zwanzig; thirty dreißig; forty vierzig; fifty fünfzig; sixty sechzig;
    seventy siebzig; eighty achtzig; ninety neunzig""")
WEEKDAYS = _pairs("""
    Monday Montag; Tuesday Dienstag; Wednesday Mittwoch; Thursday Donnerstag; Friday Freitag;
    Saturday Samstag; Sunday Sonntag""")
MONTHS = _pairs("""
    January Januar; February Februar; March März; April April; May Mai; June Juni; July Juli;
    August August; September September; October Oktober; November November; December Dezember""")
PAST_TIMES = _pairs("yesterday gestern; last_week letzte_Woche; last_year letztes_Jahr")
COMING_TIMES = _pairs("tomorrow morgen; next_week nächste_Woche; next_year nächstes_Jahr")
ANY_TIMES = _pairs("""
    today heute; this_week diese_Woche; in_the_morning am_Morgen; at_noon am_Mittag;
    in_the_evening am_Abend; at_night in_der_Nacht; in_winter im_Winter; in_summer im_Sommer""")

# Conjunctions that send the German verb to the end.
BECAUSE, ALTHOUGH, WHILE, WHEN, IF, THAT, WHETHER = _pairs(
    "because weil; although obwohl; while während; when als; if wenn; that dass; whether ob"
)
PAST_CONJUNCTIONS = (BECAUSE, ALTHOUGH, WHILE, WHEN)
PRESENT_CONJUNCTIONS = (BECAUSE, ALTHOUGH, WHILE, IF)
REPORTS = ((THAT, THINKING), (THAT, THINKING), (WHETHER, (ASK, KNOW)))
# Conjunctions between two main clauses, each with its own word order.
COORDINATORS = (Pair(" and", " und"), Pair(", but", ", aber"))
