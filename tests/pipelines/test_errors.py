"""What is quoted of an error says what went wrong."""

import pytest
import tensorflow as tf

from pipelines.errors import first_line


def test_an_error_of_a_function_is_told_by_what_failed_in_it():
    """TensorFlow puts the lines of Python before it, and the operation's name after it."""

    @tf.function
    def row(number):
        return tf.gather(tf.range(3), number)

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        row(tf.constant(3))
    assert first_line(caught.value) == "indices = 3 is not in [0, 3)"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "MemoryError"),
        (ValueError("cut short.\nmore"), "cut short"),
        (tf.errors.DataLossError(None, None, "bad {{node read}} block [Op:Restore]"), "bad block"),
        (OSError("x" * 500), "x" * 400),
    ],
    ids=["says nothing", "two lines", "names of operations", "long"],
)
def test_one_line_without_names_of_operations(error, line):
    assert first_line(error) == line
