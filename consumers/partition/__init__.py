"""One partition: its log is followed, led and decided, and its tables' files written.

The partition's server is one machine. One thread, the loop, steps it by events (`Session.step`),
and only the loop calls what the machine is made of; `tests/owned.py` asserts that, method by
method.

The server's duties towards the world:

1. It decides by the log and by what it observed and recorded, in the order of the log; only
   records of other tables and ids pass a record that waits.
2. It tells an outcome after Kafka has acknowledged it and all earlier ones, at contiguous
   offsets.
3. It calls a version readable on the materializer's word alone, after any restart.
4. It gives an id the same answer for the whole horizon, and never an answer from a void record.
5. A request that is cancelled or runs out of time changes nothing.
6. A store that hangs, fails or is slow delays the tables in it, and no other.
7. A thread that ends ends the term, and status says which tables lack files and for how long
   Kafka, the loop or a transaction has been silent; `/readyz` is made of that.
8. A checkpoint holds acknowledged outcomes, all of whose files are there, or it names the versions
   that lack theirs, which whoever starts from it makes from the log again.
9. It forgets dropped tables, closed connections and answered watches. Of dropped tables it keeps
   the transactions' ids for the horizon, their locations, and how far their rows were applied.

The world's duties towards the server:

10. Threads post events to the mailbox, in the order in which they happened, and call nothing
    else.
11. A reader posts the records of a topic in the order of their offsets, each once.
12. A writer reports each append once: acknowledged at an offset, or failed.
13. A worker reports each job once. Past its deadline the job counts as failed; its lane stays
    taken.
14. The loop's owner steps it after each event, and when `due_at` is over, by a clock that never
    goes back.
15. The loop makes a call that may hang through `Mailbox.outside`. If the call takes long, another
    thread becomes the loop, and the result comes back as an event.

What threads do share isn't state of the machine. The mailbox is a queue, and one entry that says
who is the loop, which exactly one thread takes. The sockets have one lock, their turn: the loop
reads and writes them, and another thread does while the loop is away; under it nothing waits or
decides. Workers have locks around what they keep for themselves: open stores, and announced
deletions.
"""
