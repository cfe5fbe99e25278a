import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import org.apache.arrow.c.ArrowArrayStream;
import org.apache.arrow.c.Data;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowReader;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;
import org.lance.Dataset;
import org.lance.WriteParams.WriteMode;
import org.lance.index.IndexParams;
import org.lance.index.IndexType;
import org.lance.index.scalar.ScalarIndexParams;
import org.lance.merge.MergeInsertParams;
import org.lance.namespace.RestNamespace;
import org.lance.namespace.model.CountTableRowsRequest;
import org.lance.namespace.model.CreateNamespaceRequest;
import org.lance.namespace.model.ListTableTagsRequest;
import org.lance.schema.ColumnAlteration;
import org.lance.schema.SqlExpressions;

/** Writes tables of a namespace with Lance's library; prints what it sees, a line each. */
public class Library {
  private static final RootAllocator MEMORY = new RootAllocator();
  private static final Schema SCHEMA =
      new Schema(List.of(new Field("id", FieldType.nullable(new ArrowType.Int(64, true)), null)));
  private static RestNamespace names;

  private static ArrowReader rows(int from, int to) throws Exception {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    try (VectorSchemaRoot root = VectorSchemaRoot.create(SCHEMA, MEMORY);
        ArrowStreamWriter writer = new ArrowStreamWriter(root, null, out)) {
      BigIntVector ids = (BigIntVector) root.getVector("id");
      IntStream.range(from, to).forEach(id -> ids.setSafe(id - from, id));
      root.setRowCount(to - from);
      writer.start();
      writer.writeBatch();
      writer.end();
    }
    return new ArrowStreamReader(new ByteArrayInputStream(out.toByteArray()), MEMORY);
  }

  private static String write(List<String> table, WriteMode mode, int from, int to)
      throws Exception {
    try (Dataset made =
        Dataset.write()
            .namespaceClient(names)
            .tableId(table)
            .mode(mode)
            .reader(rows(from, to))
            .allocator(MEMORY)
            .execute()) {
      return seen(made);
    }
  }

  private static Dataset open(List<String> table) {
    return Dataset.open().namespaceClient(names).tableId(table).allocator(MEMORY).build();
  }

  private static String seen(Dataset dataset) {
    return dataset.version() + " " + dataset.countRows();
  }

  private static void say(String step, Object result) {
    System.out.println(step + ": " + result);
  }

  public static void main(String[] arguments) throws Exception {
    names = new RestNamespace();
    names.initialize(Map.of("uri", arguments[0]), MEMORY);
    CreateNamespaceRequest made = new CreateNamespaceRequest();
    made.setId(List.of("java"));
    names.createNamespace(made);
    steps(List.of("java", "steps"));
    crowd(List.of("java", "crowd"), Integer.parseInt(arguments[1]));
    names.close();
  }

  private static void steps(List<String> table) throws Exception {
    say("create", write(table, WriteMode.CREATE, 0, 100));
    say("append", write(table, WriteMode.APPEND, 100, 150));
    try (Dataset dataset = open(table)) {
      dataset.delete("id < 10");
      say("delete", seen(dataset));
      try (ArrowArrayStream stream = ArrowArrayStream.allocateNew(MEMORY)) {
        Data.exportArrayStream(MEMORY, rows(140, 160), stream);
        MergeInsertParams upsert = new MergeInsertParams(List.of("id")).withMatchedUpdateAll();
        try (Dataset merged = dataset.mergeInsert(upsert, stream).dataset()) {
          say("merge", seen(merged));
        }
      }
      dataset.checkoutLatest();
      dataset.updateConfig(Map.of("k", "v"));
      say("config", dataset.version() + " " + dataset.getConfig());
      dataset.addColumns(
          new SqlExpressions.Builder().withExpression("twice", "id * 2").build(), Optional.empty());
      say("columns", dataset.version() + " " + dataset.getSchema());
      ScalarIndexParams tree = ScalarIndexParams.create("btree");
      dataset.createIndex(
          List.of("id"),
          IndexType.BTREE,
          Optional.of("by_id"),
          IndexParams.builder().setScalarIndexParams(tree).build(),
          true);
      say("index", dataset.version() + " " + dataset.listIndexes());
      dataset.compact();
      say("compact", dataset.getFragments().size() + " " + dataset.countRows());
      dataset.tags().create("first", 2);
      try (Dataset tagged = dataset.checkoutTag("first")) {
        say("tag", seen(tagged));
      }
      ListTableTagsRequest tags = new ListTableTagsRequest();
      tags.setId(table);
      say("tags", names.listTableTags(tags).getTags().keySet());
      dataset.dropColumns(List.of("twice"));
      dataset.alterColumns(
          List.of(new ColumnAlteration.Builder("id").rename("number").build()));
      say("renamed", dataset.getSchema());
      try (Dataset old = dataset.checkoutVersion(2)) {
        old.restore();
        say("restore", old.countRows() + " " + old.getSchema());
      }
    }
    say("overwrite", write(table, WriteMode.OVERWRITE, 0, 5).split(" ")[1]);
    CountTableRowsRequest count = new CountTableRowsRequest();
    count.setId(table);
    say("count", names.countTableRows(count));
  }

  /** Each of many threads appends ten times, while two others delete. */
  private static void crowd(List<String> table, int writers) throws Exception {
    write(table, WriteMode.CREATE, 0, 10);
    ExecutorService threads = Executors.newFixedThreadPool(writers + 2);
    List<Callable<Void>> work =
        IntStream.range(0, writers + 2)
            .<Callable<Void>>mapToObj(number -> () -> act(table, number, number >= writers))
            .toList();
    for (Future<Void> done : threads.invokeAll(work)) {
      done.get();
    }
    threads.shutdown();
    try (Dataset dataset = open(table)) {
      say("crowd", dataset.countRows("id >= 1000 and id % 10 > 1"));
    }
  }

  private static Void act(List<String> table, int number, boolean deletes) throws Exception {
    for (int turn = 0; turn < 10; turn++) {
      if (!deletes) {
        int from = 1000 * (number + 1) + 10 * turn;
        write(table, WriteMode.APPEND, from, from + 10);
        continue;
      }
      try (Dataset dataset = open(table)) {
        dataset.delete("id % 10 = " + number % 2 + " and id < " + 1000 * (turn + 1));
      }
    }
    return null;
  }
}
