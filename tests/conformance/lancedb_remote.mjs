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

// What the client's own cases of remote connections assert of requests, by what comes of them.
const options = { apiKey, hostOverride: url };
const config = { extraHeaders: { "X-Extra": "extra" }, retryConfig: { retries: 2 } };
const fixed = new lancedb.StaticHeaderProvider({ "X-Custom": "value" });
const tokens = new lancedb.OAuthHeaderProvider(async () => ({ accessToken: "t", expiresIn: 3600 }));
await tokens.refreshToken();
for (const provider of [fixed, tokens, async () => ({ "X-Timestamp": "now" })]) {
  const one = await lancedb.connect("db://dev", { ...options, clientConfig: config }, undefined, provider);
  assert.ok(!(await one.tableNames({ limit: 1000 })).includes(name));
}

const spaces = [`${name}_a`, `${name}_b`];
for (const space of spaces) await db.createNamespace([space]);
await db.createTable(name, rows(0, 3));
await db.renameTable(name, `${name}_1`);
await db.createTable("t", rows(0, 3), spaces.slice(0, 1));
await db.renameTable("t", "u", { namespacePath: [spaces[0]] });
await db.renameTable("u", "v", { namespacePath: [spaces[0]], newNamespacePath: [spaces[1]] });
const other = await lancedb.connect({ uri: "db://dev", ...options });
assert.equal(await (await other.openTable(`${name}_1`)).countRows(), 3);
const moved = await other.openTable("v", [spaces[1]]);
assert.equal(await moved.countRows(), 3);
await assert.rejects(other.openTable("u", [spaces[0]]), /not found/);
await assert.rejects(moved.countRows("missing = 1"), /400 Bad Request.*No field named missing/);

const branch = await (await moved.branches()).create("exp");
await branch.add(rows(3, 5));
for (const [at, where, count] of [
  [{ version: 1 }, null, 3],
  [{ branch: "main", version: 1 }, null, 3],
  [{ branch: "exp" }, "exp", 5],
  [{ branch: "exp", version: 2 }, "exp", 5],
]) {
  const opened = await other.openTable("v", [spaces[1]], at);
  assert.deepEqual([opened.currentBranch(), await opened.countRows()], [where, count]);
}
await moved.checkoutLatest(); // the client has one table of a name, which was opened at a version
await moved.createIndex("text", { config: lancedb.Index.fts({ blockSize: 256, removeStopWords: true }) });
const stopped = lancedb.Index.fts({ customStopWords: ["the"] });
await moved.createIndex("text", { config: stopped });

// Programs that number their requests from 1: what each adds is added.
for (let program = 0; program < 2; program++) {
  let count = 0;
  const numbers = async () => ({ "X-Request-Id": `req-${++count}` });
  const one = await lancedb.connect("db://dev", options, undefined, numbers);
  await (await one.openTable("v", [spaces[1]])).add(rows(9, 10));
}
assert.equal(await moved.countRows(), 5);
console.log("done");
