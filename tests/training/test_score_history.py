"""Which checkpoints are the best by their dev scores, and for how long there was no gain."""

import pytest

from pipelines.errors import BadInput
from t2t_repro.training.score_history import ScoreHistory


def history_of(directory, *scores):
    """Return a history with a score for steps 10, 20, 30, ..."""
    history = ScoreHistory(directory)
    for step, score in enumerate(scores, start=1):
        history.add(10 * step, score)
    return history


def bleu(*values):
    return [{"perplexity": 100.0 + value, "sacrebleu": value} for value in values]


def test_the_main_score_decides_and_of_equal_ones_the_earliest(tmp_path):
    history = history_of(tmp_path, *bleu(3.0, 9.0, 5.0, 9.0))
    assert history.ranking() == [20, 40, 30, 10]
    assert history.best(2, among=[10, 30, 40]) == [40, 30]
    assert history.without_gain() == 2


def test_less_perplexity_is_better(tmp_path):
    history = history_of(tmp_path, *({"perplexity": value} for value in (9.0, 4.0, 6.0)))
    assert history.ranking() == [20, 30, 10]
    assert history.without_gain() == 1


def test_scores_of_two_kinds_are_not_compared(tmp_path):
    history = history_of(tmp_path, {"perplexity": 4.0}, *bleu(3.0, 1.0))
    assert history.ranking() == [20, 30]


def test_a_perplexity_that_is_not_a_number_comes_last_and_can_be_read_again(tmp_path):
    history_of(tmp_path, {"perplexity": float("nan")}, {"perplexity": 9.0})
    again = ScoreHistory(tmp_path)
    again.recall(20)
    assert again.ranking() == [20, 10]


def test_training_that_goes_back_forgets_what_came_after(tmp_path):
    history_of(tmp_path, *bleu(3.0, 5.0, 9.0))
    history = ScoreHistory(tmp_path)
    history.recall(20)
    assert history.ranking() == [20, 10]
    history.add(25, {"sacrebleu": 4.0})
    again = ScoreHistory(tmp_path)
    again.recall(1000)
    assert again.ranking() == [20, 25, 10]


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"1": 3}', '{"x": {}}', '{"1": {"sacrebleu": NaN}}']
)
def test_a_damaged_file_is_refused(tmp_path, content):
    (tmp_path / "dev_scores.json").write_text(content)
    with pytest.raises(BadInput, match=r"dev_scores\.json: damaged"):
        ScoreHistory(tmp_path).recall(10)


def test_a_directory_that_has_vanished_is_not_made_again(tmp_path):
    with pytest.raises(FileNotFoundError):
        history_of(tmp_path / "gone", *bleu(1.0))
    assert not (tmp_path / "gone").exists()
