"""The variant low_resource: Multi30k's recipe, with sizes and updates for the words there are."""

import re
import unicodedata

import commands
import numpy as np
import pytest

from pipelines.augmentation.auxiliary_tasks import AuxiliaryTasks
from pipelines.errors import BadInput
from pipelines.shards import EncodedSplit
from pipelines.vocabulary import Vocabulary
from t2t_repro import config, low_resource

MULTI30K = 350_000  # words
# What Multi30k's own file sets for its text and for how it was scored, beside the recipe.
OF_MULTI30K = {"tokenized", "data_dir", "target_language"}


def pairs(words, times=1):
    """Return pairs that have as many words on the longer side, the source."""
    return [{"source": "ein " * words, "target": "wort " * (words // 4 + 1)}] * times


def fitted(words, **given):
    text = pairs(100, times=words // 100)
    return config.flat(low_resource.fit(resolved(given), text, given))


def resolved(given=()):
    return config.resolve("parallel_text", "low_resource", dict(given))


def test_recipe_is_that_of_multi30k():
    theirs = config.flat(config.resolve("multi30k_ende"))
    ours = config.flat(resolved())
    assert {name for name in ours if ours[name] != theirs[name]} <= OF_MULTI30K
    assert (
        config.flat(config.resolve("multi30k_ende", "low_resource")).items()
        >= {name: value for name, value in ours.items() if name not in OF_MULTI30K}.items()
    )


def test_as_many_words_as_multi30k_get_its_sizes():
    assert fitted(MULTI30K) == config.flat(resolved())


def test_fewer_words_get_fewer_pieces_and_updates():
    sizes = [
        low_resource.sizes(words, 100, True)
        for words in (1_000, 40_000, 120_000, MULTI30K, 1_000_000)
    ]
    for name in sizes[0]:
        values = [size[name] for size in sizes]
        assert values == sorted(values)
        assert values[0] < values[3]


@pytest.mark.parametrize(
    ("words", "characters", "expected"),
    [
        (350_000, 100, (8_000, 13_000, True)),
        (140_000, 100, (3_500, 8_200, True)),  # 130 sqrt(0.4) = 82.2
        (87_500, 100, (2_200, 6_500, False)),  # a quarter of the words: half of the updates
        (1_000, 100, (1_000, 2_000, False)),
        (1_000, 3_000, (259 + 3_750, 2_000, False)),  # 259 special pieces; 1.25 x 3,000
    ],
)
def test_sizes_by_the_rule(words, characters, expected):
    assert tuple(low_resource.sizes(words, characters, True).values()) == expected


def test_auxiliary_tasks_need_many_updates():
    assert fitted(MULTI30K)["auxiliary_tasks"]
    assert not fitted(MULTI30K, train_steps=4_000)["auxiliary_tasks"]
    assert fitted(MULTI30K, train_steps=4_000, auxiliary_tasks=True)["auxiliary_tasks"]


def test_words_are_those_of_the_side_that_has_more():
    text = [
        {"source": "two words", "target": "\u4e24\u4e2a\u8bcd"},
        {"source": "", "target": "a b c"},
    ]
    different = len(set("two words\u4e24\u4e2a\u8bcda b c"))
    assert low_resource.count(text) == (4, 2, different, 2 * 1 + 0 * 3)


def test_characters_are_those_that_the_vocabulary_sees():
    syllables = [chr(0xAC00 + 7 * number) for number in range(1_000)]
    taken_apart = unicodedata.normalize("NFD", "".join(syllables))
    assert len(set(taken_apart)) < 100
    assert low_resource.count([{"source": taken_apart, "target": ""}])[2] == 1_000


def test_auxiliary_tasks_are_left_out_where_their_words_cannot_be_aligned(tmp_path):
    """Fewer than a million words, in paragraphs: AuxiliaryTasks refuses as many pieces."""
    words = " ".join(f"w{number}" for number in range(170))
    paragraphs = [{"source": words, "target": words}] * 5_000
    fitted = low_resource.fit(resolved(), paragraphs, {})
    assert not fitted.train.auxiliary_tasks
    split = EncodedSplit.from_shards([np.empty(0)], [np.full((5_000, 2), 172)], {})
    with pytest.raises(BadInput, match="which are too many or too long"):
        AuxiliaryTasks(None, split, 256, 0, tmp_path)


def test_auxiliary_tasks_are_left_out_for_a_script_without_spaces():
    text = [{"source": "word " * 25, "target": "\u4e24\u4e2a\u8bcd" * 9}] * 14_000
    assert not low_resource.fit(resolved(), text, {}).train.auxiliary_tasks
    spaced = [pair | {"target": "w " * 9} for pair in text]
    assert low_resource.fit(resolved(), spaced, {}).train.auxiliary_tasks


def test_a_script_of_thousands_of_characters_gets_a_vocabulary_that_can_be_learnt():
    """As Chinese: 3,000 characters, and 97,000 words."""
    symbols = [chr(0x4E00 + number) for number in range(3_000)]
    lines = ["".join(symbols[start::97]) for start in range(97)] * 40
    text = [{"source": "word " * 25, "target": line} for line in lines]
    words, _, characters, _ = low_resource.count(text)
    assert (words, characters) == (97_000, 3_005)
    size = low_resource.sizes(words, characters, True)["vocabulary_size"]
    with pytest.raises(BadInput, match="need at least"):
        Vocabulary.learn((text for pair in text for text in pair.values()), words // 40)
    learnt = Vocabulary.learn((text for pair in text for text in pair.values()), size)
    assert learnt.size == size


def test_what_the_user_gives_stays(capsys):
    values = fitted(40_000, vocabulary_size=3_000, train_steps=77)
    assert (values["vocabulary_size"], values["train_steps"]) == (3_000, 77)
    assert "40,000 words" in capsys.readouterr().err


def test_a_large_text_is_refused():
    with pytest.raises(
        BadInput, match=r"at most 1,000,000 words a side, got 1,000,002; leave the variant"
    ):
        low_resource.fit(resolved(), pairs(500_001, times=2), {})


def test_parsing_has_no_such_variant(capfd):
    assert commands.call("train", "--problem=toy_parsing", "--variant=low_resource") == 2
    assert "unknown variant 'low_resource'" in capfd.readouterr().err


def test_a_run_keeps_what_it_was_given_at_its_start(tmp_path, capfd):
    for name in ("en", "de"):
        (tmp_path / name).write_text("".join(f"{name}{n} und so weiter\n" for n in range(900)))
    flags = ["--problem=parallel_text", "--variant=low_resource", f"--workdir={tmp_path / 'run'}"]
    flags += [f"--source_files={tmp_path / 'en'}", f"--target_files={tmp_path / 'de'}"]
    assert commands.call("prepare", *flags, "--vocabulary_size=300") == 0
    first = config.load(tmp_path / "run" / "config.yaml")
    (words,) = re.findall(r"low_resource: ([\d,]+) words", capfd.readouterr().err)
    words = int(words.replace(",", ""))
    assert 4 * 850 < words < 4 * 900  # of the 900 pairs, about 18 are held out for dev and test
    assert first.data.vocabulary_size == 300
    assert first.train.train_steps == low_resource.sizes(words, 20, 0)["train_steps"]
    assert commands.call("prepare", *flags) == 0
    assert "low_resource:" not in capfd.readouterr().err  # the words are not counted again
    assert config.load(tmp_path / "run" / "config.yaml") == first
