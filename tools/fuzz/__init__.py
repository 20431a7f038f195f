"""Every reader of foreign text of the library, and a coverage-guided search for texts that break one.

``parsers.py`` lists the readers with what each refuses and how. ``python3 dev.py fuzz`` searches with
atheris, and ``tests/unit/test_foreign_text.py`` runs the same readers on their corpus and on changed texts.
"""
