"""Access to a table's own files, by grant: keys of a session, or requests that are signed here."""
