"""A model as a folder, in the layout of KerasHub's presets.

    config.json         the class and the arguments that make the model, as Keras serialises them
    metadata.json       Keras's version, the number of parameters, the date
    model.weights.h5    the weights

`pipelines.vocabulary` puts the tokenizer beside them. Keras's own reader of config.json imports
whatever class the file names; the reader here takes plain values only, and layers that are
registered already.
"""

import dataclasses
import datetime
import json
import os
import typing
from pathlib import Path
from typing import Any

import keras

from pipelines import json_object, regular_file, storage
from pipelines.errors import BadInput
from t2t_repro.config import FIELDS, Model
from t2t_repro.model import flops, table1_layers  # noqa: F401  the second registers its layers
from t2t_repro.settings import setting_value

CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
_CLASS = "t2t_repro>Transformer"


def save(model: keras.Model, directory: Path) -> None:
    """Write a model; config.json comes last, so a folder that has it is complete.

    Raises:
        BadInput: `arguments` would refuse the model, for its subclass, its type or an argument of
            its self-attention; or config.json or metadata.json cannot be written.
        OSError: The weights cannot be written.
    """
    serialized = keras.saving.serialize_keras_object(model)
    made_again = {k: v for k, v in serialized.items() if not k.endswith("_config")}
    try:
        _arguments(json.loads(json.dumps(made_again)))
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"a preset cannot hold this model ({error}); `model.save` can") from None
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONFIG).unlink(missing_ok=True)
    model.save_weights(directory / WEIGHTS, overwrite=True)
    metadata = {
        "keras_version": keras.version(),
        "parameter_count": model.count_params(),
        "date_saved": datetime.datetime.now().strftime("%Y-%m-%d@%H:%M:%S"),
        "tasks": [],
    }
    for name, values in ((METADATA, metadata), (CONFIG, made_again)):
        storage.write(str(directory), name, (json.dumps(values, indent=4) + "\n").encode())


def arguments(directory: Path) -> dict[str, Any]:
    """Return the arguments that make the model of a preset.

    Raises:
        BadInput: There is no preset of a Transformer, or it is damaged.
    """
    try:
        content = regular_file.read(directory / CONFIG, json_object.MOST_BYTES)
        made = _arguments(json_object.parse(content))
        _check_size(made, (directory / WEIGHTS).stat().st_size)
        return made
    except OSError as error:
        name = os.path.basename(error.filename)
        raise _unusable(directory, f"{name}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise _unusable(directory, error) from None


def _arguments(described: dict[str, Any]) -> dict[str, Any]:
    if described.get("registered_name") != _CLASS:
        name = json_object.shown(described.get("registered_name"))
        raise ValueError(f"{CONFIG}: a {name}; wanted a {_CLASS}")
    config = described["config"]
    hints = typing.get_type_hints(Model)
    settings = {
        field.name: setting_value(field, hints[field.name], config["config"][field.name], CONFIG)
        for field in dataclasses.fields(Model)
    }
    rows = setting_value(FIELDS["embedding_rows"], int, config["rows"], CONFIG)
    dtype = config["dtype"]["config"]["name"]
    return {
        "config": Model(**settings),
        "rows": rows,
        "dtype": setting_value(FIELDS["precision"], str, dtype, CONFIG),
        "self_attention": config["self_attention"] and _layer(config["self_attention"]),
        "name": str(config["name"]),
    }


def _check_size(made: dict[str, Any], size: int) -> None:
    """Check that a file of `size` bytes can hold the weights, before memory is taken for them."""
    count = flops.trainable_parameters(made["config"], made["rows"])
    if made["self_attention"] is None and 4 * count > size:
        raise ValueError(f"{WEIGHTS}: {size:,} bytes, too few for {count:,} parameters")


def _layer(described: dict[str, Any]) -> keras.layers.Layer:
    """Make a registered layer from plain values; the model gives it name and type."""
    cls = keras.saving.get_registered_object(described["registered_name"])
    if cls is None:
        raise ValueError(f"{CONFIG}: no layer {json_object.shown(described['registered_name'])}")
    given = {k: v for k, v in described["config"].items() if k not in ("name", "dtype")}
    for name, value in given.items():
        if isinstance(value, list | dict):
            raise ValueError(f"{CONFIG}: {name}: wanted a number, text, true, false or null")
    return cls(**given)


def load_weights(model: keras.Model, directory: Path) -> None:
    """Read the weights of a preset into its model.

    Raises:
        BadInput: They are missing or damaged, or belong to a model of another shape.
    """
    path = directory / WEIGHTS
    try:
        regular_file.opened(path).close()
        model.load_weights(path)
    # h5py and Keras have exceptions of many types for files that are damaged.
    except Exception as error:
        raise _unusable(directory, f"{WEIGHTS}: {error}") from None


def _unusable(directory: Path, error: object) -> BadInput:
    reason = " ".join(str(error).split())[:200]
    return BadInput(
        f"{os.fspath(directory)}: not a usable preset ({reason}); wanted a folder that "
        "`Transformer.save_to_preset` or `export --format=keras` has written: make it again"
    )
