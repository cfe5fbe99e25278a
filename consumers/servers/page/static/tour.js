// What a newcomer sees in an empty log: the first table in three steps, then where to look.

import { h } from "./dom.js";
import { served } from "./opening.js";
import { code, panel } from "./parts.js";
import { address } from "./state.js";

/** The tour; `status` tells where the log is. */
export function tour(status) {
  const kafka = JSON.stringify(status?.kafka || "HOST:PORT");
  const log = JSON.stringify(status?.log || "commitlog");
  return h("div.tour", {},
    h("p.lead", {}, "This log has no tables yet. Three steps make one; this page shows each of them within a second."),
    h("ol", {},
      h("li", {}, panel("1. Make a table", code(`import pyarrow as pa
from commitlog import CommitLog

log = CommitLog.connect(${kafka}, log=${log})
schema = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
log.create_table("shop$orders", schema, primary_key="id")`, "Make a table"))),
      h("li", {}, panel("2. Write rows", code(`log.append("shop$orders", pa.table({"id": [1, 2], "amount": [9.5, 3.0]}, schema=schema))
log.update("shop$orders", {"amount": "amount * 2"}, "id = 2")`, "Write rows"))),
      h("li", {}, panel("3. Look at it", h("p", {}, "The table then appears here. Open it to see its schema, its rows at any version, its files, and what each commit changed."),
        code(`log.open("shop$orders").to_table()
log.open("shop$orders", 2).to_table()  # as it was`, "Look at it")))),
    h("h2", {}, "What else is here"),
    h("dl", {},
      [["Log", "log", "every decided transaction, refused ones too"],
        ["Conflicts", "conflicts", "who lost to whom, on which rows, by which rule"],
        ["SQL", "sql", "questions to the history, with examples"],
        ["Live", "live", "rates, leaders, writers"]].map(([word, view, meaning]) => [
        h("dt", {}, h("a", { href: address({ view }), "data-link": true }, word)), h("dd", {}, meaning)])),
    h("p.note", {}, "Clients of Lance and Iceberg work as they are: point them to ", h("code", {}, served()), "."));
}
