"""`python PATH/peers FILE NAME probe|DIRECTORY`: prints the version of contender NAME, or is a rank of it.

Run by path, under the contender's own interpreter. FILE is a module of this folder or the absolute path of another.
"""

import importlib
import os
import sys
from types import ModuleType

_PACKAGE = "benchmark_of_arraycomm"
_HERE = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    file, name, what = sys.argv[1:4]
    # Imported as a part of a package and not through sys.path, where jax.py and the like would shadow the libraries.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    sys.modules[_PACKAGE] = package = ModuleType(_PACKAGE)
    package.__path__ = [os.path.dirname(_HERE)]
    peers, protocol = (importlib.import_module(f"{_PACKAGE}.peers{module}") for module in ("", ".protocol"))
    if what == "probe":
        protocol.probe(peers.contender(file), name)
    else:
        protocol.serve(peers.contender(file), what, name)
