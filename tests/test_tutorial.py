"""docs/tutorial.ipynb runs, and its committed outputs are those of a complete run."""

import re

import pytest
from paths import ROOT

TUTORIAL = ROOT / "docs" / "tutorial.ipynb"


@pytest.fixture(scope="module")
def notebook():
    nbformat = pytest.importorskip("nbformat", reason="a dev extra")
    return nbformat.read(TUTORIAL, as_version=4)


def test_outputs_are_complete_and_small(notebook):
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    names = {output.get("name") for cell in code for output in cell.outputs}
    assert "stderr" not in names
    assert TUTORIAL.stat().st_size < 500_000


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_it_runs(notebook):
    """Run all cells, with 60 steps of training instead of 900."""
    nbclient = pytest.importorskip("nbclient", reason="a dev extra")
    for cell in notebook.cells:
        cell.source = cell.source.replace('"train_steps": 900', '"train_steps": 60')
    folder = {"metadata": {"path": str(TUTORIAL.parent)}}
    nbclient.NotebookClient(notebook, timeout=1500, resources=folder).execute()
    printed = "".join(
        output.text
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type == "stream"
    )
    before, after = (
        float(re.search(pattern, printed)[1])
        for pattern in (r"pieces; perplexity (\d+)", r"([\d.]+) after 60 steps")
    )
    assert after < before / 4
