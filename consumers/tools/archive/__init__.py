"""Decided records in Parquet files, with the proof that they are what the log had.

    ARCHIVE/<partition>/proof.json                      the segments, each with what proves it
    ARCHIVE/<partition>/<first>-<last>.outcomes.parquet       every record of the outcomes topic
    ARCHIVE/<partition>/<first>-<last>.transactions.parquet   the transactions that they answer

A segment is written, read again from the disk, compared record by record with the hashes that the
log has of them, and only then named in the proof. Only what is proven that way may be given up in
the transactions topic, and only when somebody asks for it. `ArchivedLog` puts archive and topic
together again: for its readers nothing is missing.
"""
