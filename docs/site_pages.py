"""A hook of MkDocs: the pages at the top of the repository, and what they link to, join the site.

Their links, which are right in a checkout, are changed to where the site has the pages.
"""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
NAMES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "configs/parallel_text.yaml": "configs/parallel_text.yaml",
    "configs/variant_low_resource.yaml": "configs/variant_low_resource.yaml",
}


def on_files(files, config):
    """Add the pages to the files of the site."""
    for name, in_site in NAMES.items():
        files.append(File.generated(config, in_site, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown, page, **_):
    """Return a page with the links of the checkout changed to those of the site."""
    if page.file.src_path in NAMES.values():
        return re.sub(r"\]\(docs/", "](", markdown)
    return re.sub(r"\]\(\.\./([A-Z]+\.md|configs/)", r"](\1", markdown)
