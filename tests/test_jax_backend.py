"""The files that use only Keras and NumPy give the same results on Keras's JAX backend."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT

pytest.importorskip("jax", reason="a dev extra")

FILES = (
    *("model/test_attention", "model/test_fast_ops", "model/test_layers"),
    "model/test_keras_objects",
    *(
        "model/test_table1_layers",
        "model/test_transformer",
        "training/test_loss",
        "training/test_schedule",
    ),
    *("decoding/test_beam_search", "decoding/test_decoder", "decoding/test_sampling"),
)
# Half of the time is of tests whose operations others have too. Of those for restricted attention a
# band of 5 in 97 positions is kept, which are several blocks; of those for attention's gradients
# width 16, for which there is a kernel, and not 8; of those for the scorer one search.
LEFT_OUT = (
    "not (examples_of_the_docstrings or draw_from_is_greedy or padding_of_a_target"
    " or encoder_takes_any or neighbours_nor_padding or hypotheses_change_places"
    " or (full_attention and not 5-97) or in_bfloat16_it_is_near or depend_on_their_own_draws"
    " or (search_said and not None-0.0) or (saved_model and changes1) or 8-mask_shape"
    " or compute_in_its_type or comes_from_the_tokens_before)"
)

ON_JAX = """
import json, sys
import keras
import numpy as np
from t2t_repro.config import Model
from t2t_repro.model.transformer import Transformer

model = Transformer(Model(**json.loads(sys.argv[1])))
saved = np.load(sys.argv[2])
for index, variable in enumerate(model.trainable_variables):
    variable.assign(saved[f"weight {index}"])
logits = keras.ops.convert_to_numpy(model(saved["source"], saved["target"]))
np.save(sys.argv[3], logits)
print(keras.backend.backend())
"""


def run_on_jax(*arguments, **variables):
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"} | variables,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_logits_are_those_of_tensorflow(build, tmp_path):
    model = build()
    source = np.array([[5, 9, 17, 4, 1], [8, 3, 1, 0, 0]], "int32")
    target = np.array([[7, 3, 1, 0], [4, 5, 6, 1]], "int32")
    weights = {f"weight {i}": np.array(w) for i, w in enumerate(model.trainable_variables)}
    saved, found = tmp_path / "saved.npz", tmp_path / "logits.npy"
    np.savez(saved, source=source, target=target, **weights)
    settings = json.dumps(dataclasses.asdict(model.config))
    assert run_on_jax("-c", ON_JAX, settings, saved, found) == "jax\n"
    expected = np.array(model(source, target))
    np.testing.assert_allclose(np.load(found), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_kernels_for_a_gpu_are_their_formula():
    file = Path(__file__).parent / "model" / "test_short_attention.py"
    stdout = run_on_jax("-m", "pytest", "-p", "no:cacheprovider", file)
    assert " passed" in stdout, stdout


@pytest.mark.slow
@pytest.mark.timeout(4000)  # 107 s beside another worker on a Xeon
def test_pure_files_pass_on_jax(tmp_path):
    tests = Path(__file__).parent
    files = [str(tests / f"{name}.py") for name in FILES]
    # A loop is compiled anew in each call, unless JAX finds the same one among its files: without
    # them this took half as long again.
    compilation = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    pytest_ = ("-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", "-k", LEFT_OUT)
    stdout = run_on_jax(*pytest_, *files, **compilation)
    assert int(re.search(r"(\d+) passed", stdout)[1]) > 80, stdout
