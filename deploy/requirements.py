"""Prints what pyproject.toml requires, one requirement a line, so that an image can install it in a layer of its own.

Usage: python requirements.py [EXTRA ...]; every extra's requirements are added to the project's own.
"""

import sys
from pathlib import Path

import tomllib

project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
requirements = list(project["dependencies"])
for extra in sys.argv[1:]:
    requirements += project["optional-dependencies"][extra]
print(*requirements, sep="\n")
