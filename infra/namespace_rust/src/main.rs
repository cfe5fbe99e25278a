//! Carries out calls of Lance's namespace with its generated Rust client: a JSON line each, in and
//! out.
//!
//! `commitlog-namespace-rust URL API_KEY < calls > answers`. A call names a method of the client and
//! its arguments; requests are read into the client's types, and answers are written from them.

use std::io::{BufRead, Write};

use lance_namespace_reqwest_client::apis::configuration::{ApiKey, Configuration};
use lance_namespace_reqwest_client::apis::{
    Error, branch_api as branches, data_api as data, index_api as indices,
    namespace_api as namespaces, table_api as tables, tag_api as tags,
    transaction_api as transactions,
};
use serde_json::{Value, json};

type Answer = Result<Value, Box<dyn std::error::Error>>;

fn refused<T>(error: Error<T>) -> Value {
    match error {
        // Every error of the client is the same untagged type: only the body tells the code.
        Error::ResponseError(answer) => {
            let body: Value = serde_json::from_str(&answer.content).unwrap_or(Value::Null);
            json!({"status": answer.status.as_u16(), "code": body["code"], "typed": answer.entity.is_some()})
        }
        other => json!({"status": 0, "error": other.to_string()}),
    }
}

async fn carried_out(log: &Configuration, call: &Value) -> Answer {
    let id = call["id"].as_str().unwrap_or("");
    let text = |name: &str| call[name].as_str();
    let flag = |name: &str| call[name].as_bool();
    let limit = call["limit"].as_i64().map(|limit| limit as i32);
    let rows = || std::fs::read(text("rows").unwrap_or(""));
    macro_rules! answered {
        ($called:expr) => {
            match $called.await {
                Ok(found) => json!({"status": 200, "body": found}),
                Err(error) => refused(error),
            }
        };
    }
    macro_rules! asked {
        ($method:path $(, $more:expr)*) => {
            answered!($method(log, id, serde_json::from_value(call["body"].clone())?, None $(, $more)*))
        };
    }
    let page = text("page_token");
    let branch = text("branch");
    Ok(match text("method").unwrap_or("") {
        "create_namespace" => asked!(namespaces::create_namespace),
        "describe_namespace" => asked!(namespaces::describe_namespace),
        "namespace_exists" => asked!(namespaces::namespace_exists),
        "drop_namespace" => asked!(namespaces::drop_namespace),
        "list_namespaces" => answered!(namespaces::list_namespaces(log, id, None, page, limit)),
        "list_tables" => answered!(tables::list_tables(log, id, None, page, limit, None)),
        "list_all_tables" => answered!(tables::list_all_tables(log, None, page, limit, None)),
        "create_table" => {
            answered!(data::create_table(
                log,
                id,
                rows()?,
                None,
                text("mode"),
                None,
                None
            ))
        }
        "insert_into_table" => {
            answered!(data::insert_into_table(
                log,
                id,
                rows()?,
                None,
                branch,
                text("mode")
            ))
        }
        "merge_insert_into_table" => {
            let on = vec![text("on").unwrap_or("").to_owned()];
            let (update, insert) = (flag("update"), flag("insert"));
            let called = data::merge_insert_into_table(
                log,
                id,
                on,
                rows()?,
                None,
                branch,
                update,
                None,
                insert,
                None,
                None,
                None,
                None,
            );
            answered!(called)
        }
        "query_table" => {
            let query = serde_json::from_value(call["body"].clone())?;
            match data::query_table(log, id, query, None).await {
                Ok(found) => {
                    std::fs::write(text("into").unwrap_or(""), found.bytes().await?)?;
                    json!({"status": 200, "body": null})
                }
                Err(error) => refused(error),
            }
        }
        "update_table" => asked!(data::update_table),
        "delete_from_table" => asked!(data::delete_from_table),
        "count_table_rows" => asked!(data::count_table_rows),
        "explain_table_query_plan" => asked!(data::explain_table_query_plan),
        "analyze_table_query_plan" => asked!(data::analyze_table_query_plan),
        "declare_table" => asked!(tables::declare_table),
        "register_table" => asked!(tables::register_table),
        "deregister_table" => asked!(tables::deregister_table),
        "describe_table" => asked!(tables::describe_table, None, flag("detailed"), None),
        "table_exists" => asked!(tables::table_exists),
        "rename_table" => asked!(tables::rename_table),
        "drop_table" => answered!(tables::drop_table(log, id, None)),
        "restore_table" => asked!(tables::restore_table),
        "get_table_stats" => asked!(tables::get_table_stats),
        "list_table_versions" => {
            let descending = flag("descending");
            answered!(tables::list_table_versions(
                log, id, None, branch, page, limit, descending
            ))
        }
        "describe_table_version" => asked!(tables::describe_table_version),
        "create_table_version" => asked!(tables::create_table_version),
        "batch_delete_table_versions" => asked!(tables::batch_delete_table_versions),
        "batch_commit_tables" => {
            let request = serde_json::from_value(call["body"].clone())?;
            answered!(transactions::batch_commit_tables(log, request, None))
        }
        "alter_table_add_columns" => asked!(tables::alter_table_add_columns),
        "alter_table_alter_columns" => asked!(tables::alter_table_alter_columns),
        "alter_table_drop_columns" => asked!(tables::alter_table_drop_columns),
        "update_table_schema_metadata" => asked!(tables::update_table_schema_metadata, branch),
        "create_table_index" => asked!(indices::create_table_index),
        "create_table_scalar_index" => asked!(indices::create_table_scalar_index),
        "list_table_indices" => asked!(indices::list_table_indices),
        "describe_table_index_stats" => {
            let request = serde_json::from_value(call["body"].clone())?;
            let name = text("index").unwrap_or("");
            answered!(indices::describe_table_index_stats(
                log, id, name, request, None
            ))
        }
        "drop_table_index" => {
            let name = text("index").unwrap_or("");
            answered!(indices::drop_table_index(log, id, name, None, branch))
        }
        "list_table_tags" => answered!(tags::list_table_tags(log, id, None, page, limit)),
        "create_table_tag" => asked!(tags::create_table_tag),
        "get_table_tag_version" => asked!(tags::get_table_tag_version),
        "update_table_tag" => asked!(tags::update_table_tag),
        "delete_table_tag" => asked!(tags::delete_table_tag),
        "create_table_branch" => asked!(branches::create_table_branch),
        "list_table_branches" => {
            answered!(branches::list_table_branches(log, id, None, page, limit))
        }
        "delete_table_branch" => asked!(branches::delete_table_branch),
        "describe_transaction" => asked!(transactions::describe_transaction),
        "alter_transaction" => asked!(transactions::alter_transaction),
        unknown => return Err(format!("no such method: {unknown}").into()),
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut given = std::env::args().skip(1);
    let url = given.next().ok_or("give the server's URL and an API key")?;
    let key = given.next().ok_or("give an API key")?;
    let log = Configuration {
        base_path: url,
        api_key: Some(ApiKey { prefix: None, key }),
        ..Configuration::default()
    };
    for line in std::io::stdin().lock().lines() {
        let answer = carried_out(&log, &serde_json::from_str(&line?)?).await?;
        writeln!(std::io::stdout(), "{answer}")?;
    }
    Ok(())
}
