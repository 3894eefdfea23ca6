"""The tests of fuseprompt; the folders mirror those of the package.

`tests.shapes` is imported here, since pyproject.toml names what stands in it.
"""

from tests import shapes as shapes
