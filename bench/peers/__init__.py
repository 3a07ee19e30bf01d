"""The contenders of `arraycomm-bench compare`: one rank program each, over one protocol.

Nothing here imports the rest of the benchmark or, but for ours.py, arraycomm: a contender runs under the interpreter
that has its library, and imports that only when it is made.
To add one, write its file with a class `Contender(Peer)`; its name on the command line is the file's.
"""
