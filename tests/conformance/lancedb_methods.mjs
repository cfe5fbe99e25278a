// Every public method of LanceDB's JavaScript client, tried: it works, or says what isn't served.
// A release of the client that adds a method fails here until the method is in one of the lists.
import assert from "node:assert/strict";
import * as lancedb from "@lancedb/lancedb";

const [url, apiKey] = process.argv.slice(2);
const db = await lancedb.connect({ uri: "db://any", apiKey, hostOverride: url });
const NOT_SERVED = /(406 Not Acceptable|Failed to clone)[^]* not supported; .{20}/;
// The client refuses it by itself.
const BY_CLIENT = /not supported|not implemented|cannot be run on a remote table|requires LanceDB Cloud/;
const VECTOR = [5, 1, 2, 3];
const rows = (first, last) =>
  Array.from({ length: last - first }, (_, i) => ({
    id: first + i,
    text: `word${(first + i) % 7} common text`,
    vector: [first + i, 1, 2, 3],
  }));
let names = 0;
const fresh = () => `js_methods_${++names}`;
const make = () => db.createTable(fresh(), rows(0, 10));
const idsOf = (found) => found.map((row) => Number(row.id)).sort((a, b) => a - b);
const all = async (t) => idsOf(await t.query().select(["id"]).limit(1000).toArray());
const count = async (t, expected) => assert.equal(await t.countRows(), expected);
const indices = async (t) => (await t.listIndices()).map((one) => one.name);
const fields = async (t) => (await t.schema()).fields.map((f) => f.name);
const btree = (t) => t.createIndex("id", { config: lancedb.Index.btree() });
const fts = (t) => t.createIndex("text", { config: lancedb.Index.fts() });

function publicOf(made, stop = Object.prototype) {
  const found = new Set();
  for (let p = Object.getPrototypeOf(made); p && p !== stop; p = Object.getPrototypeOf(p)) {
    for (const name of Object.getOwnPropertyNames(p)) {
      if (name !== "constructor" && !name.startsWith("_")) found.add(name);
    }
  }
  return [...found].sort();
}

const DATABASE = {
  cancelJob: async () => assert.equal(await db.cancelJob("no such job"), false),
  createEmptyTable: async () => {
    const { schema } = lancedb.makeArrowTable(rows(0, 1));
    await count(await db.createEmptyTable(fresh(), schema), 0);
  },
  createNamespace: async () => assert.ok(await db.createNamespace([fresh()])),
  createTable: async () => await count(await make(), 10),
  describeNamespace: async () => {
    const name = fresh();
    await db.createNamespace([name], { properties: { a: "b" } });
    assert.equal((await db.describeNamespace([name])).properties.a, "b");
  },
  display: () => assert.match(db.display(), /any|127/),
  dropNamespace: async () => {
    const name = fresh();
    await db.createNamespace([name]);
    await db.dropNamespace([name]);
    assert.ok(!(await db.listNamespaces([], { limit: 1000 })).namespaces.includes(name));
  },
  dropTable: async () => {
    const { name } = await make();
    await db.dropTable(name);
    assert.ok(!(await db.tableNames({ limit: 1000 })).includes(name));
  },
  dropTableAsync: async () => {
    const { name } = await make();
    await db.dropTableAsync(name);
    assert.ok(!(await db.tableNames({ limit: 1000 })).includes(name));
  },
  getStorageOptions: async () => assert.ok((await db.getStorageOptions()) !== null),
  isOpen: () => assert.ok(db.isOpen()),
  listNamespaces: async () => {
    const name = fresh();
    await db.createNamespace([name]);
    assert.ok((await db.listNamespaces([], { limit: 1000 })).namespaces.includes(name));
  },
  listTables: async () => {
    const { name } = await make();
    assert.ok((await db.listTables({ limit: 1000 })).tables.includes(name));
  },
  openTable: async () => await count(await db.openTable((await make()).name), 10),
  renameTable: async () => {
    const [{ name }, next] = [await make(), fresh()];
    await db.renameTable(name, next);
    // This client itself remembers the table by its old name.
    const other = await lancedb.connect({ uri: "db://any", apiKey, hostOverride: url });
    await count(await other.openTable(next), 10);
  },
  tableNames: async () => {
    const { name } = await make();
    assert.ok((await db.tableNames({ limit: 1000 })).includes(name));
  },
};
const DATABASE_REFUSED = {
  cloneTable: [() => db.cloneTable("c", "/nowhere"), NOT_SERVED],
  createMaterializedView: [() => db.createMaterializedView("v", "kept"), BY_CLIENT],
  dropAllTables: [() => db.dropAllTables(), BY_CLIENT],
  listJobs: [() => db.listJobs(), NOT_SERVED],
  listMaterializedViews: [() => db.listMaterializedViews(), BY_CLIENT],
  openJob: [() => db.openJob("j"), /Job 'j' was not found/],
  openMaterializedView: [() => db.openMaterializedView("kept"), BY_CLIENT],
};
const TABLE = {
  add: async (t) => await t.add(rows(10, 12)).then(() => count(t, 12)),
  addColumns: async (t) => {
    await t.addColumns([{ name: "double", valueSql: "id * 2" }]);
    assert.ok((await fields(t)).includes("double"));
  },
  alterColumns: async (t) => {
    await t.alterColumns([{ path: "text", rename: "words" }]);
    assert.ok((await fields(t)).includes("words"));
  },
  blobColumns: async (t) => assert.deepEqual(await t.blobColumns(), []),
  branches: async (t) => {
    const branches = await t.branches();
    const branch = await branches.create("b");
    await branch.add(rows(10, 11));
    assert.deepEqual(Object.keys(await branches.list()), ["b"]);
    await count(await branches.checkout("b"), 11);
    await count(t, 10);
    await branches.delete("b");
    assert.deepEqual(Object.keys(await branches.list()), []);
  },
  checkout: async (t) => {
    await t.delete("id < 5");
    await t.checkout(1);
    await count(t, 10);
  },
  checkoutLatest: async (t) => {
    await t.delete("id < 5");
    await t.checkout(1);
    await t.checkoutLatest();
    await count(t, 5);
  },
  closeLsmWriters: async (t) => await t.closeLsmWriters(),
  countRows: async (t) => assert.equal(await t.countRows("id < 3"), 3),
  createIndex: async (t) => {
    await btree(t);
    assert.deepEqual(await indices(t), ["id_idx"]);
  },
  createIndexAsync: async (t) => {
    await t.createIndexAsync("id", { config: lancedb.Index.btree() });
    assert.deepEqual(await indices(t), ["id_idx"]);
  },
  currentBranch: async (t) => {
    const branch = await (await t.branches()).create("b");
    assert.deepEqual([t.currentBranch(), branch.currentBranch()], [null, "b"]);
  },
  delete: async (t) => await t.delete("id < 4").then(() => count(t, 6)),
  display: (t) => assert.ok(t.display().includes(t.name)),
  dropColumns: async (t) => {
    await t.dropColumns(["text"]);
    assert.ok(!(await fields(t)).includes("text"));
  },
  dropIndex: async (t) => {
    await btree(t);
    await t.dropIndex("id_idx");
    assert.deepEqual(await indices(t), []);
  },
  getEmbeddingFunctions: async (t) => assert.equal((await t.getEmbeddingFunctions()).size, 0),
  indexStats: async (t) => {
    await btree(t);
    assert.equal((await t.indexStats("id_idx")).numIndexedRows, 10);
  },
  initialStorageOptions: async (t) => assert.ok(!(await t.initialStorageOptions())),
  isOpen: (t) => assert.ok(t.isOpen()),
  latestStorageOptions: async (t) => assert.ok(!(await t.latestStorageOptions())),
  listIndices: async (t) => assert.deepEqual(await indices(t), []),
  listVersions: async (t) => assert.deepEqual((await t.listVersions()).map((v) => v.version), [1]),
  mergeInsert: async (t) => {
    const merging = t.mergeInsert("id").whenMatchedUpdateAll().whenNotMatchedInsertAll();
    const merged = await merging.execute(rows(8, 12));
    assert.deepEqual([Number(merged.numUpdatedRows), Number(merged.numInsertedRows)], [2, 2]);
    await t.mergeInsert("id").whenNotMatchedBySourceDelete().execute(rows(0, 3));
    assert.deepEqual(await all(t), [0, 1, 2]);
  },
  name: (t) => assert.match(t.name, /^js_methods_/),
  prewarmIndex: async (t) => await btree(t).then(() => t.prewarmIndex("id_idx")),
  query: async (t) => assert.deepEqual(idsOf(await t.query().where("id > 8").toArray()), [9]),
  restore: async (t) => {
    await t.delete("id < 5");
    await t.checkout(1);
    await t.restore();
    await count(t, 10);
  },
  schema: async (t) => assert.deepEqual(await fields(t), ["id", "text", "vector"]),
  search: async (t) => assert.equal((await t.search(VECTOR).limit(2).toArray()).length, 2),
  stats: async (t) => assert.equal(Number((await t.stats()).numRows), 10),
  tags: async (t) => {
    const tags = await t.tags();
    await t.add(rows(10, 11));
    await tags.create("a", 1);
    await tags.update("a", 2);
    assert.equal(await tags.getVersion("a"), 2);
    assert.deepEqual(Object.keys(await tags.list()), ["a"]);
    await tags.delete("a");
    assert.deepEqual(Object.keys(await tags.list()), []);
  },
  takeOffsets: async (t) => assert.deepEqual(idsOf(await t.takeOffsets([1, 5]).toArray()), [1, 5]),
  takeRowIds: async (t) => assert.deepEqual(idsOf(await t.takeRowIds([2, 3]).toArray()), [2, 3]),
  toArrow: async (t) => assert.equal((await t.toArrow()).numRows, 10),
  tokenize: async (t) => {
    await fts(t);
    const found = await t.tokenize("word3 common", { column: "text" });
    assert.deepEqual(found.map((one) => one.text), ["word3", "common"]);
  },
  update: async (t) => {
    const updated = await t.update({ where: "id = 1", values: { text: "x" } });
    assert.equal(Number(updated.rowsUpdated), 1);
  },
  updateFieldMetadata: async (t) => {
    await t.updateFieldMetadata([{ path: "id", metadata: { a: "b" } }]);
    const [id] = (await t.schema()).fields;
    assert.equal(id.metadata.get("a"), "b");
  },
  vectorSearch: async (t) =>
    assert.equal((await t.vectorSearch(VECTOR).limit(2).toArray()).length, 2),
  version: async (t) => {
    await t.delete("id = 1");
    assert.equal(await t.version(), 2);
  },
  waitForIndex: async (t) => await btree(t).then(() => t.waitForIndex(["id_idx"], 60)),
};
const TABLE_REFUSED = {
  checkpointLsm: [(t) => t.checkpointLsm(), NOT_SERVED],
  compactLsm: [(t) => t.compactLsm(), NOT_SERVED],
  fetchBlobFiles: [(t) => t.fetchBlobFiles("text", [0]), BY_CLIENT],
  fetchBlobs: [(t) => t.fetchBlobs("text", [0]), BY_CLIENT],
  flushLsm: [(t) => t.flushLsm(), NOT_SERVED],
  getLsmStats: [(t) => t.getLsmStats(), NOT_SERVED],
  getLsmWriteSpec: [(t) => t.getLsmWriteSpec(), NOT_SERVED],
  migrateManifestPathsV2: [(t) => t.migrateManifestPathsV2(), BY_CLIENT],
  optimize: [(t) => t.optimize(), BY_CLIENT],
  prewarmData: [(t) => t.prewarmData(), NOT_SERVED],
  refreshColumn: [(t) => t.refreshColumn("id"), BY_CLIENT],
  refreshColumnAsync: [(t) => t.refreshColumnAsync("id"), NOT_SERVED],
  refreshMaterializedView: [(t) => t.refreshMaterializedView(), BY_CLIENT],
  setLsmWriteSpec: [(t) => t.setLsmWriteSpec({ specType: "bucket", column: "id", numBuckets: 2 }), NOT_SERVED],
  setUnenforcedPrimaryKey: [(t) => t.setUnenforcedPrimaryKey("id"), BY_CLIENT],
  unsetLsmWriteSpec: [(t) => t.unsetLsmWriteSpec(), NOT_SERVED],
  usesV2ManifestPaths: [(t) => t.usesV2ManifestPaths(), BY_CLIENT],
};
const BRANCHES_REFUSED = {
  cherryPick: [(b) => b.cherryPick("other"), NOT_SERVED],
  diff: [(b) => b.diff("other"), NOT_SERVED],
};
const STEPS = {
  addQueryVector: [VECTOR],
  bypassVectorIndex: [],
  column: ["vector"],
  distanceRange: [0, 9],
  distanceType: ["cosine"],
  ef: [20],
  fastSearch: [],
  filter: ["id < 250"],
  limit: [3],
  maximumNprobes: [40],
  minimumNprobes: [1],
  nprobes: [2],
  offset: [1],
  orderBy: [{ columnName: "id", ascending: false }],
  postfilter: [],
  refineFactor: [2],
  select: [["id"]],
  useLsm: [false],
  where: ["id < 250"],
  withRowId: [],
};
const ENDS = {
  analyzePlan: async (q) => assert.match(await q.analyzePlan(), /elapsed/),
  explainPlan: async (q) => assert.match(await q.explainPlan(true), /LanceRead|Take/),
  outputSchema: async (q) => assert.ok((await q.outputSchema()).fields.some((f) => f.name === "id")),
  toArray: async (q) => assert.ok((await q.toArray()).length >= 2),
  toArrow: async (q) => assert.ok((await q.toArrow()).numRows >= 2),
};
// What begins another query, what is the client's own, and what another test uses.
const OTHERWISE = [
  ...["doCall", "doVectorCall", "execute", "getInner", "nativeExecute"],
  ...["fullTextSearch", "nearestTo", "nearestToText", "rerank"],
];
const SEARCHES = {
  Query: (t) => t.query().limit(5),
  VectorQuery: (t) => t.query().nearestTo(VECTOR).limit(5),
  FullText: (t) => t.query().nearestToText("common").limit(5),
  Hybrid: (t) =>
    t.query().nearestTo(VECTOR).fullTextSearch("common", { columns: ["text"] }).limit(5),
  TakeQuery: (t) => t.takeOffsets([1, 5]),
};

// The client has no such hybrid search.
const OF_CLIENT = ["addQueryVector", "analyzePlan", "explainPlan", "outputSchema"];

function sameNames(what, found, ...lists) {
  assert.deepEqual(found, lists.flatMap((one) => Object.keys(one)).sort(), what);
}

async function each(what, tried, ask) {
  for (const [name, one] of Object.entries(tried)) {
    try {
      await ask(one);
    } catch (error) {
      failures.push(`${what}.${name}: ${error.stack}`);
    }
  }
}

const refused = ([ask, words], ...given) => assert.rejects(async () => await ask(...given), words);
const kept = await db.createTable("kept", rows(0, 300));
await fts(kept);
await kept.createIndex("vector", { config: lancedb.Index.ivfFlat({ numPartitions: 2 }) });
const branches = await kept.branches();
await branches.create("other");

sameNames("Connection", publicOf(db).filter((n) => n !== "close"), DATABASE, DATABASE_REFUSED);
sameNames("Table", publicOf(kept).filter((n) => n !== "close"), TABLE, TABLE_REFUSED);
sameNames("Tags", publicOf(await kept.tags()), { create: 0, delete: 0, getVersion: 0, list: 0, update: 0 });
sameNames("Branches", publicOf(branches), { checkout: 0, create: 0, delete: 0, list: 0 }, BRANCHES_REFUSED);
const steps = new Set(Object.values(SEARCHES).flatMap((make) => publicOf(make(kept))));
sameNames("queries", [...steps].sort(), STEPS, ENDS, Object.fromEntries(OTHERWISE.map((n) => [n, 0])));
const merge = kept.mergeInsert("id");
sameNames("MergeInsertBuilder", publicOf(merge), {
  ...{ execute: 0, useIndex: 0, useLsm: 0, validateSingleShard: 0, whenMatchedUpdateAll: 0 },
  ...{ whenNotMatchedBySourceDelete: 0, whenNotMatchedInsertAll: 0 },
});

const failures = [];
await each("Connection", DATABASE, (one) => one());
await each("Connection", DATABASE_REFUSED, (one) => refused(one));
await each("Table", TABLE, async (one) => one(await make()));
await each("Table", TABLE_REFUSED, (one) => refused(one, kept));
await each("Branches", BRANCHES_REFUSED, (one) => refused(one, branches));
for (const setting of ["useIndex", "useLsm", "validateSingleShard"]) {
  const table = await make();
  const merging = table.mergeInsert("id").whenMatchedUpdateAll().whenNotMatchedInsertAll();
  await merging[setting](false).execute(rows(8, 12));
  await count(table, 12);
}
for (const [kind, search] of Object.entries(SEARCHES)) {
  const has = ([name]) =>
    name in search(kept) && !(kind === "Hybrid" && OF_CLIENT.includes(name));
  for (const [step, given] of Object.entries(STEPS).filter(has)) {
    await each(kind, { [step]: given }, async () => {
      const found = await search(kept)[step](...given).toArrow();
      assert.ok(found.numRows >= 1);
    });
  }
  await each(kind, Object.fromEntries(Object.entries(ENDS).filter(has)), (end) => end(search(kept)));
}
assert.deepEqual(failures, []);
console.log("done");
process.exit(0);
