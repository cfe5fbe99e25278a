"""Erases rows of a table everywhere: `commitlog erase`.

What holds a row: the table's data files, indices and old versions; the transaction that wrote it,
in its topic and in the archive; a file of rows. First all writes of rows are found that hold what
is to be erased. Then one transaction deletes the rows of the table and names those writes: that is
the act. It says who erased, when and why, and holds no row, no key and no predicate. Everything
after it needs the act only, and looks at what is there: so it may be killed anywhere, and called
again.
"""
