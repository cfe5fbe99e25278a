// Use an Iceberg REST catalogue through iceberg-go as it is, and print what came of it as JSON:
// `URI NAMESPACE WRITERS ROUNDS`. WRITERS goroutines commit ROUNDS appends each, every one of them to
// two tables at once, and nobody tries a second time.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
)

var ctx = context.Background()

var columns = iceberg.NewSchema(0,
	iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64},
	iceberg.NestedField{ID: 2, Name: "name", Type: iceberg.PrimitiveTypes.String},
)

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func rows(ids ...int64) arrow.Table {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "name", Type: arrow.BinaryTypes.String, Nullable: true},
	}, nil)
	builder := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	for _, id := range ids {
		builder.Field(0).(*array.Int64Builder).Append(id)
		builder.Field(1).(*array.StringBuilder).Append("go")
	}
	return array.NewTableFromRecords(schema, []arrow.RecordBatch{builder.NewRecordBatch()})
}

func ids(one *table.Table) []int64 {
	read := must(one.Scan().ToArrowTable(ctx))
	found := []int64{}
	for _, chunk := range read.Column(0).Data().Chunks() {
		found = append(found, chunk.(*array.Int64).Int64Values()...)
	}
	return found
}

// life is what one client does with a table from its creation to its end.
func life(cat *rest.Catalog, namespace string) map[string]any {
	name := func(last string) table.Identifier { return table.Identifier{namespace, last} }
	one := must(cat.CreateTable(ctx, name("life"), columns))
	one = must(one.AppendTable(ctx, rows(1, 2, 3), 10, nil))
	one = must(one.Delete(ctx, iceberg.EqualTo(iceberg.Reference("id"), int64(2)), nil))
	tx := one.NewTransaction()
	check(tx.UpdateSchema(true, false).AddColumn([]string{"more"}, iceberg.PrimitiveTypes.Int32, "", false, nil).Commit())
	check(tx.SetProperties(iceberg.Properties{"said": "so"}))
	one = must(tx.Commit(ctx))
	one = must(cat.LoadTable(ctx, name("life")))
	found := map[string]any{
		"rows":      ids(one),
		"snapshots": len(one.Metadata().Snapshots()),
		"columns":   len(one.Schema().Fields()),
		"said":      one.Properties()["said"],
	}
	must(cat.RenameTable(ctx, name("life"), name("moved")))
	found["old-is-there"] = must(cat.CheckTableExists(ctx, name("life")))
	kept := must(cat.LoadTable(ctx, name("moved")))
	check(cat.DropTable(ctx, name("moved")))
	found["registered"] = ids(must(cat.RegisterTable(ctx, name("back"), kept.MetadataLocation())))
	check(cat.PurgeTable(ctx, name("back")))
	return found
}

func append2(cat *rest.Catalog, tables []table.Identifier, id int64) error {
	both, err := catalog.NewMultiTableTransaction(cat)
	if err != nil {
		return err
	}
	for _, name := range tables {
		one, err := cat.LoadTable(ctx, name)
		if err != nil {
			return err
		}
		tx := one.NewTransaction()
		if err := tx.AppendTable(ctx, rows(id), 10, nil); err != nil {
			return err
		}
		if err := both.AddTransaction(tx); err != nil {
			return err
		}
	}
	return both.Commit(ctx)
}

func main() {
	uri, namespace := os.Args[1], os.Args[2]
	writers, rounds := must(strconv.Atoi(os.Args[3])), must(strconv.Atoi(os.Args[4]))
	cat := must(rest.NewCatalog(ctx, "log", uri))
	if !must(cat.CheckNamespaceExists(ctx, table.Identifier{namespace})) {
		check(cat.CreateNamespace(ctx, table.Identifier{namespace}, nil))
	}
	found := map[string]any{"life": life(cat, namespace)}
	pair := []table.Identifier{{namespace, "left"}, {namespace, "right"}}
	for _, name := range pair {
		if !must(cat.CheckTableExists(ctx, name)) {
			must(cat.CreateTable(ctx, name, columns))
		}
	}
	var wait sync.WaitGroup
	failures := make(chan string, writers*rounds)
	for writer := range writers {
		wait.Go(func() {
			for round := range rounds {
				if err := append2(cat, pair, int64(writer*rounds+round)); err != nil {
					failures <- fmt.Sprintf("writer %d, round %d: %v", writer, round, err)
				}
			}
		})
	}
	wait.Wait()
	close(failures)
	failed := []string{}
	for one := range failures {
		failed = append(failed, one)
	}
	found["failed"] = failed
	check(json.NewEncoder(os.Stdout).Encode(found))
}
