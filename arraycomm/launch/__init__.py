"""Starting ranks: the launcher (`arraycomm-run`, `python -m arraycomm.launch`) and `spawn`."""
