// Use an Iceberg REST catalogue through iceberg-rust as it is, and print what came of it as JSON:
// `URI NAMESPACE TABLE WRITERS ROUNDS FIRST`. WRITERS tasks commit ROUNDS appends each to one table,
// of one row with an id from FIRST on, and none tries a second time.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray};
use futures::TryStreamExt;
use iceberg::io::LocalFsStorageFactory;
use iceberg::spec::{DataFile, DataFileFormat, NestedField, PrimitiveType, Schema, Type};
use iceberg::table::Table;
use iceberg::transaction::{ApplyTransactionAction, Transaction};
use iceberg::writer::base_writer::data_file_writer::DataFileWriterBuilder;
use iceberg::writer::file_writer::ParquetWriterBuilder;
use iceberg::writer::file_writer::location_generator::{
    DefaultFileNameGenerator, DefaultLocationGenerator,
};
use iceberg::writer::file_writer::rolling_writer::RollingFileWriterBuilder;
use iceberg::writer::{IcebergWriter, IcebergWriterBuilder};
use iceberg::{Catalog, CatalogBuilder, NamespaceIdent, TableCreation, TableIdent};
use iceberg_catalog_rest::{REST_CATALOG_PROP_URI, RestCatalog, RestCatalogBuilder};
use parquet::file::properties::WriterProperties;
use serde_json::{Value, json};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

async fn connect(uri: &str) -> Fallible<RestCatalog> {
    let given = HashMap::from([(REST_CATALOG_PROP_URI.to_string(), uri.to_string())]);
    let builder =
        RestCatalogBuilder::default().with_storage_factory(Arc::new(LocalFsStorageFactory));
    Ok(builder.load("log", given).await?)
}

fn columns() -> Fallible<Schema> {
    let fields = vec![
        NestedField::optional(1, "id", Type::Primitive(PrimitiveType::Long)).into(),
        NestedField::optional(2, "name", Type::Primitive(PrimitiveType::String)).into(),
    ];
    Ok(Schema::builder().with_fields(fields).build()?)
}

async fn written(table: &Table, tag: &str, ids: Vec<i64>) -> Fallible<Vec<DataFile>> {
    let schema = table.metadata().current_schema().clone();
    let names = DefaultFileNameGenerator::new(tag.to_string(), None, DataFileFormat::Parquet);
    let rolling = RollingFileWriterBuilder::new_with_default_file_size(
        ParquetWriterBuilder::new(WriterProperties::default(), schema.clone()),
        table.file_io().clone(),
        DefaultLocationGenerator::new(table.metadata())?,
        names,
    );
    let mut writer = DataFileWriterBuilder::new(rolling).build(None).await?;
    let named: ArrayRef = Arc::new(StringArray::from(vec!["rust"; ids.len()]));
    let columns = vec![Arc::new(Int64Array::from(ids)) as ArrayRef, named];
    let arrow = Arc::new(iceberg::arrow::schema_to_arrow_schema(&schema)?);
    writer.write(RecordBatch::try_new(arrow, columns)?).await?;
    Ok(writer.close().await?)
}

async fn append(catalog: &RestCatalog, table: &Table, tag: &str, ids: Vec<i64>) -> Fallible<Table> {
    let files = written(table, tag, ids).await?;
    let change = Transaction::new(table);
    let change = change.fast_append().add_data_files(files).apply(change)?;
    Ok(change.commit(catalog).await?)
}

async fn ids(table: &Table) -> Fallible<Vec<i64>> {
    let scan = table.scan().select(["id"]).build()?;
    let batches: Vec<RecordBatch> = scan.to_arrow().await?.try_collect().await?;
    let mut found = Vec::new();
    for batch in batches {
        let column = batch.column(0).as_any().downcast_ref::<Int64Array>();
        found.extend(column.ok_or("the column id isn't of longs")?.values().iter());
    }
    found.sort();
    Ok(found)
}

// What one client does with a table from its creation to its end.
async fn life(catalog: &RestCatalog, space: &NamespaceIdent) -> Fallible<Value> {
    let name = |last: &str| TableIdent::new(space.clone(), last.to_string());
    let wanted = TableCreation::builder()
        .name("life".to_string())
        .schema(columns()?)
        .build();
    let table = catalog.create_table(space, wanted).await?;
    let table = append(catalog, &table, "first", vec![1, 2, 3]).await?;
    let change = Transaction::new(&table);
    let set = change.update_table_properties();
    let change = set.set("said".to_string(), "so".to_string()).apply(change)?;
    change.commit(catalog).await?;
    let table = catalog.load_table(&name("life")).await?;
    let first = table.metadata().current_snapshot_id();
    let table = append(catalog, &table, "second", vec![4]).await?;
    let now = ids(&table).await?;
    let scan = table.scan().snapshot_id(first.ok_or("there is no snapshot")?);
    let then: Vec<RecordBatch> = scan.build()?.to_arrow().await?.try_collect().await?;
    catalog.rename_table(&name("life"), &name("moved")).await?;
    let is_there = catalog.table_exists(&name("life")).await?;
    let kept = catalog.load_table(&name("moved")).await?;
    let place = kept.metadata_location_result()?.to_string();
    catalog.drop_table(&name("moved")).await?;
    let back = catalog.register_table(&name("back"), place).await?;
    let registered = ids(&back).await?;
    catalog.purge_table(&name("back")).await?;
    Ok(json!({
        "rows": now,
        "rows-then": then.iter().map(RecordBatch::num_rows).sum::<usize>(),
        "said": table.metadata().properties().get("said"),
        "snapshots": table.metadata().snapshots().len(),
        "old-is-there": is_there,
        "registered": registered,
        "left": catalog.table_exists(&name("back")).await?,
    }))
}

#[tokio::main]
async fn main() -> Fallible<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [uri, space, shared, writers, rounds, first] = &given[..] else {
        return Err("arguments: URI NAMESPACE TABLE WRITERS ROUNDS FIRST".into());
    };
    let (writers, rounds, first): (i64, i64, i64) =
        (writers.parse()?, rounds.parse()?, first.parse()?);
    let catalog = Arc::new(connect(uri).await?);
    let own = NamespaceIdent::new(format!("{space}_rust"));
    catalog.create_namespace(&own, HashMap::new()).await?;
    let lived = life(&catalog, &own).await?;
    let shared = TableIdent::new(NamespaceIdent::new(space.clone()), shared.clone());
    let mut tasks = Vec::new();
    for writer in 0..writers {
        let (catalog, shared) = (catalog.clone(), shared.clone());
        tasks.push(tokio::spawn(async move {
            let mut failed = Vec::new();
            for round in 0..rounds {
                let id = first + writer * rounds + round;
                let one = async {
                    let table = catalog.load_table(&shared).await?;
                    append(&catalog, &table, &format!("rust-{id}"), vec![id]).await
                };
                if let Err(error) = one.await {
                    failed.push(format!("{id}: {error}"));
                }
            }
            failed
        }));
    }
    let mut failed = Vec::new();
    for task in tasks {
        failed.extend(task.await?);
    }
    let found = json!({"life": lived, "failed": failed});
    println!("{found}");
    Ok(())
}
