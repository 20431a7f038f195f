"""The programs of docs/start: five minutes in ``hello``, and the shop of the tutorial, a file per chapter.

The reader saves each chapter as ``shop.py``. A chapter is the one before plus one idea; the pages contain the
files, and mark the lines that are new.
"""
