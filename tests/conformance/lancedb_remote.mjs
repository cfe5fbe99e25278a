// LanceDB's JavaScript client, unmodified, against the server: what it does comes out as asserted.
import assert from "node:assert/strict";
import * as lancedb from "@lancedb/lancedb";

const [url, apiKey, name] = process.argv.slice(2);
const db = await lancedb.connect({ uri: "db://any", apiKey, hostOverride: url });
const rows = (first, last) =>
  Array.from({ length: last - first }, (_, i) => ({
    id: first + i,
    text: `word${(first + i) % 7} common text`,
    vector: [first + i, 1, 2, 3].map(Number),
  }));

let table = await db.createTable(name, rows(0, 300));
assert.equal(await table.countRows(), 300);
await assert.rejects(db.createTable(name, rows(0, 1)), /already exists/);
table = await db.openTable(name);
assert.deepEqual((await table.schema()).fields.map((f) => f.name), ["id", "text", "vector"]);
assert.ok((await db.tableNames()).includes(name));

await table.add(rows(300, 310));
const merged = await table
  .mergeInsert("id")
  .whenMatchedUpdateAll()
  .whenNotMatchedInsertAll()
  .execute(rows(305, 315));
assert.deepEqual([Number(merged.numUpdatedRows), Number(merged.numInsertedRows)], [5, 5]);
const updated = await table.update({ where: "id = 1", values: { text: "other" } });
assert.equal(Number(updated.rowsUpdated), 1);
await table.delete("id = 0");
assert.equal(await table.countRows(), 314);
assert.equal(await table.countRows("id >= 300"), 15);

const near = await table.search([5, 1, 2, 3]).limit(2).toArray();
assert.equal(Number(near[0].id), 5);
const few = await table.query().where("id > 310").select(["id"]).limit(100).toArray();
assert.deepEqual(few.map((row) => Number(row.id)).sort(), [311, 312, 313, 314]);

await table.createIndex("text", { config: lancedb.Index.fts() });
await table.createIndex("id", { config: lancedb.Index.btree() });
await table.waitForIndex(["text_idx", "id_idx"], 60);
const found = await table.query().fullTextSearch("word3", { columns: ["text"] }).limit(5).toArray();
assert.equal(found.length, 5);
assert.deepEqual((await table.listIndices()).map((one) => one.name).sort(), ["id_idx", "text_idx"]);
assert.equal((await table.indexStats("id_idx")).numUnindexedRows, 0);
await table.dropIndex("id_idx");

await table.addColumns([{ name: "twice", valueSql: "id * 2" }]);
await table.alterColumns([{ path: "twice", rename: "double" }]);
await table.dropColumns(["double"]);

const tags = await table.tags();
await tags.create("first", 1);
assert.equal(await tags.getVersion("first"), 1);
await table.checkout("first");
assert.equal(await table.countRows(), 300);
await table.checkout(2);
assert.equal(await table.countRows(), 310);
await table.restore();
assert.equal(await table.countRows(), 310);
assert.ok((await table.listVersions()).length > 5);
await tags.delete("first");

await db.dropTable(name);
await assert.rejects(db.openTable(name), /not found/);
console.log("done");
