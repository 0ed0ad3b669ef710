"""The list of mutations.yaml fits the code; tests/mutations.py tries them."""

import pytest
import yaml
from paths import ROOT

MUTATIONS = yaml.safe_load((ROOT / "tests/mutations.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_applies_to_the_code(name):
    mutation = MUTATIONS[name]
    assert (ROOT / mutation["file"]).read_text(encoding="utf-8").count(mutation["old"]) == 1
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutation["tests"])
