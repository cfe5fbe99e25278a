"""Files of Iceberg tables: which are needed, which expire, which are removed."""
