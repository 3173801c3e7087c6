"""The life of a server's connection, decided and not done: a table, judgements, and effects as data.

``table.py`` is the whole lifecycle at a glance; ``events.py`` is what can happen, ``effects.py``
what is to be done about it, ``judge.py`` and ``actions.py`` how one leads to the other, and
``life.py`` the object that a slot holds. Nothing here does I/O, knows the time or takes a chance.
"""
