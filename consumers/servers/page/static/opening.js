// How to open a table with the tools that people have, at a version, with this log's addresses.

import { fill, h } from "./dom.js";
import { choices, code } from "./parts.js";

const KEPT = "open-with";

/** The address that the page itself is served at, without its last slash. */
export const served = () => new URL(".", location.href).href.replace(/\/$/, "");

const quoted = (text) => JSON.stringify(text);
const parts = (name) => name.split("$");

const LANCE = {
  Python: ({ name, version, kafka, log }) => `from commitlog import CommitLog

log = CommitLog.connect(${quoted(kafka)}, log=${quoted(log)})
table = log.open(${quoted(name)}${version ? `, ${version}` : ""})
table.to_table()`,
  pylance: ({ name, version, http }) => `import lance, lance_namespace

names = lance_namespace.connect("rest", {"uri": ${quoted(http)}})
table = lance.dataset(namespace_client=names, table_id=${JSON.stringify(parts(name))}${version ? `, version=${version}` : ""})
table.to_table()`,
  Spark: ({ name, version, kafka, log }) => `from commitlog.spark import CommitLogDataSource

spark.dataSource.register(CommitLogDataSource)
frame = (
    spark.read.format("commitlog")
    .option("kafka.bootstrap.servers", ${quoted(kafka)})
    .option("log", ${quoted(log)})
    .option("table", ${quoted(name)})${version ? `
    .option("versionAsOf", ${version})` : ""}
    .load()
)`,
  DuckDB: ({ name, version, kafka, log }) => `import duckdb
from commitlog import CommitLog

log = CommitLog.connect(${quoted(kafka)}, log=${quoted(log)})
this_table = log.open(${quoted(name)}${version ? `, ${version}` : ""})
duckdb.sql("SELECT * FROM this_table LIMIT 10").show()`,
  LanceDB: ({ name, version, http }) => {
    const path = parts(name);
    const table = path.pop();
    return `import lancedb

db = lancedb.connect("db://commitlog", api_key="YOUR-KEY", host_override=${quoted(http)})
table = db.open_table(${quoted(table)}${path.length ? `, namespace_path=${JSON.stringify(path)}` : ""})${version ? `
table.checkout(${version})` : ""}
table.to_arrow()`;
  },
};

const ICEBERG = {
  Python: ({ name, http }) => `from pyiceberg.catalog import load_catalog

catalog = load_catalog("log", type="rest", uri=${quoted(http)})
table = catalog.load_table(${quoted(parts(name).join("."))})
table.scan().to_arrow()`,
  Spark: ({ name, http }) => `spark-sql \\
  --conf spark.sql.catalog.log=org.apache.iceberg.spark.SparkCatalog \\
  --conf spark.sql.catalog.log.type=rest \\
  --conf spark.sql.catalog.log.uri=${http} \\
  -e 'SELECT * FROM log.${parts(name).join(".")} LIMIT 10'`,
  DuckDB: ({ name, http }) => `INSTALL iceberg;
LOAD iceberg;
ATTACH '' AS log (TYPE iceberg, ENDPOINT '${http}', AUTHORIZATION_TYPE 'none');
SELECT * FROM log.${parts(name).join(".")} LIMIT 10;`,
};

/** Code that opens a table; `about` has name, version (null: the newest), format, kafka and log. */
export function opening(about) {
  const ways = about.format === "iceberg" ? ICEBERG : LANCE;
  const names = Object.keys(ways);
  const element = h("div.opening");
  const draw = (name) => {
    const chosen = names.includes(name) ? name : names[0];
    localStorage.setItem(KEPT, chosen);
    const focused = element.contains(document.activeElement);
    fill(element, choices("Open it with", names, chosen, draw),
      code(ways[chosen]({ ...about, kafka: about.kafka || "HOST:PORT", http: served() }), `Open the table with ${chosen}`));
    if (focused) element.querySelector("[aria-pressed=true]").focus();
  };
  draw(localStorage.getItem(KEPT));
  return element;
}
