"""Why a server cannot be used, and what to do about it: checks make findings; how those look is others' matter.

``checks/`` has one small class for each thing that is looked at, ``diagnosis/`` turns what a dial showed into
a finding, ``run.py`` runs all checks of all servers side by side, ``codes.py`` says what each code means.
"""
