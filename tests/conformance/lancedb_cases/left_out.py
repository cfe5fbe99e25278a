"""LanceDB's cases of the same files that no server can pass by the remote client, by reason.

The remote client refuses some calls itself; others never reach a server. The pages on functions,
LSM writes, materialized views, blobs and loaders aren't here: the server answers 406, which
`test_lancedb_methods.py` has by call.
"""

from __future__ import annotations

_PANDAS = "the client makes frames of rows by itself, with libraries that aren't installed here"
_CLIENT = "no request is made: it tests the client's own classes"
_REFUSED = "the remote client refuses the call"
_SERVICES = "needs a model or a service of somebody else"
_NOT_SERVED = "406: the server doesn't do it, and says what to do instead"
_DISK = "looks at files, settings or handles of a database on disk"
_EMBEDDED = "the remote client computes no vector for a text"
_FORKS = "forks while the client has threads: on a busy machine such a process may hang by itself"
_UNSENT = "the remote client doesn't send it"

LEFT_OUT: dict[str, dict[str, str]] = {
    "python/tests/test_table.py": {
        _PANDAS: """test_table_to_pandas_blob_bytes test_table_to_pandas_blob_modes test_polars
            test_table_to_pandas_default_matches_arrow test_table_to_pandas_kwargs
            test_table_to_pandas_invalid_blob_mode_non_blob_table test_async_table_to_pandas_kwargs
            test_async_table_to_pandas_blob_bytes
            test_async_table_to_pandas_invalid_blob_mode_non_blob_table""",
        _CLIENT: """test_add_releases_arrow_buffers_without_gc test_create_index_method
            test_create_index_legacy_emits_deprecation_warning test_create_index_new_api
            test_sanitize_data_metadata_not_stripped
            test_async_search_runs_embedding_on_dedicated_executor
            test_computed_column_rejects_transforms_and_computed_together
            test_on_bad_vectors_with_multiple_vectors_locks_dim_after_final_drop""",
        _REFUSED: """test_merge test_search_after_merge test_sync_optimize test_optimize
            test_sync_optimize_in_async test_optimize_delete_unverified test_compact_cleanup
            test_async_to_lance test_async_to_lance_forwards_dataset_options
            test_async_to_lance_targets_checked_out_version test_branch_to_lance_targets_branch
            test_async_branch_to_lance_targets_branch test_replace_field_metadata
            test_namespace_root_table_to_lance_uses_namespace_client
            test_merge_insert_by_source_delete_expr
            test_merge_insert_by_source_delete_expr_async""",
        _UNSENT: "test_create_index_name_and_train_parameters",
        _EMBEDDED: """test_create_with_embedding_function test_add_with_embedding_function
            test_hybrid_search test_hybrid_search_metric_type""",
        _NOT_SERVED: """test_computed_column_declare_and_refresh test_computed_column_async
            test_refresh_column_async_returns_job test_refresh_column_async_job_async_table""",
        _DISK: "test_table_uri",
    },
    "python/tests/test_query.py": {
        _PANDAS: """test_async_plain_scan_query_to_pandas_blob_bytes_projection
            test_async_plain_scan_query_to_pandas_blob_mode_does_not_collect_arrow
            test_async_plain_scan_query_to_pandas_blob_projection test_query_to_pandas_kwargs
            test_plain_scan_query_to_pandas_blob_bytes_projection
            test_plain_scan_query_to_pandas_blob_descriptions_flatten_uses_scanner
            test_plain_scan_query_to_pandas_blob_mode_does_not_collect_arrow
            test_plain_scan_query_to_pandas_blob_modes test_query_to_pandas_flatten_async
            test_plain_scan_query_to_pandas_scanner_state test_query_to_polars_async
            test_vector_query_to_pandas_blob_descriptions_requires_plain_scan
            test_vector_query_to_pandas_blob_mode_requires_native_path
            test_blob_v2_with_row_id_bytes_pandas""",
        _CLIENT: """test_cast test_ensure_vector_query_empty_list
            test_ensure_vector_query_nested_empty_list test_query_serialization_async
            test_query_serialization_sync test_query_builder_with_different_vector_column""",
        _SERVICES: "test_query_reranked_async",
        _EMBEDDED: "test_query_search_auto",
        _NOT_SERVED: """test_blob_v2_expr_projection_stash test_blob_v2_query_omits_auto_row_id
            test_blob_v2_to_batches_row_id""",
    },
    "python/tests/test_fts.py": {
        _CLIENT: """test_fts_phrase_query_false_preserves_string test_fts_query_to_json
            test_fts_phrase_query_is_preserved_in_query_object
            test_fts_phrase_query_preserves_fully_quoted_string
            test_fts_phrase_query_preserves_structured_phrase_query
            test_fts_phrase_query_rejects_other_structured_queries
            test_tokenize_uses_explicit_icu_tokenizer test_tokenize_uses_explicit_simple_tokenizer
            test_reject_removed_tantivy_parameters test_create_index_multiple_columns""",
        _DISK: """test_reject_legacy_tantivy_index
            test_create_inverted_index_respects_build_memory_limit""",
        _SERVICES: """test_fts_jieba_tokenizer test_fts_lindera_tokenizer
            test_fts_jieba_missing_language_model_note
            test_fts_jieba_missing_language_model_note_async""",
    },
    "python/tests/test_hybrid_query.py": {
        _CLIENT: """test_hybrid_phrase_query_is_preserved_in_analyze_plan test_normalize_scores""",
        _REFUSED: "test_hybrid_query_with_stale_fixed_size_binary_prefilter",
    },
    "python/tests/test_index.py": {
        _REFUSED: "test_create_hnswpq_index test_create_hnswpq_alias_index",
        _CLIENT: """test_index_config_repr
            test_index_statistics_index_type_lists_all_supported_values""",
    },
    "python/tests/test_nested_fields.py": {
        _REFUSED: """test_nested_fts_append_optimize test_nested_vector_append_optimize
            test_optimize_and_list_indices_stable""",
    },
    "python/tests/test_rerankers.py": {
        _SERVICES: """test_answerdotai_reranker test_answerdotai_reranker_return_all
            test_cohere_reranker test_colbert_reranker test_cross_encoder_reranker
            test_cross_encoder_reranker_return_all test_jina_reranker test_openai_reranker
            test_voyageai_reranker test_watsonx_reranker""",
        _CLIENT: """test_linear_combination_best_match_ranks_first
            test_linear_combination_missing_fts_is_penalised test_mrr_reranker_empty_input
            test_mrr_multivector_rewards_consensus""",
    },
    "python/tests/test_db.py": {
        _PANDAS: "test_ingest_pd",
        _CLIENT: """test_package_includes_pep_561_marker test_close test_connect
            test_context_manager test_read_consistency_interval_does_not_use_background_loop
            test_sync_debugger_inspection_does_not_use_background_loop""",
        _REFUSED: """test_drop_database test_db_contains_stops_after_matching_table_page
            test_db_contains_and_len_include_all_table_name_pages""",
        _NOT_SERVED: """test_clone_table_deep_clone_fails test_clone_table_latest_version
            test_clone_table_specific_version test_clone_table_with_tag""",
        _DISK: """test_create_in_v2_mode test_create_table_v2_manifest_paths_async
            test_create_table_stable_row_ids_table_level_override
            test_create_table_stable_row_ids_table_level_override_sync
            test_create_table_stable_row_ids_via_storage_options
            test_create_table_stable_row_ids_via_storage_options_sync
            test_local_sync_namespace_preserves_public_errors
            test_local_sync_namespace_uses_rust_without_python_client
            test_namespace_client_namespace_connection test_namespace_client_native_storage
            test_namespace_client_with_storage_options""",
    },
    "python/tests/test_remote_db.py": {
        _FORKS: "test_remote_connection_after_fork test_inherited_remote_table_reopens_after_fork",
        _CLIENT: """test_background_loop_cancellation test_create_client
            test_connect_rejects_invalid_cloud_dns_hostname
            test_remote_blob_byte_apis_not_supported_on_old_server""",
        _NOT_SERVED: """test_checkpoint_lsm_sync test_flush_and_compact_lsm_sync
            test_get_lsm_stats_sync test_get_lsm_stats_sync_returns_none_when_lsm_disabled
            test_remote_blob_columns_and_fetch test_remote_blob_fetch_accepts_query_table
            test_remote_blob_files_are_lazy_seekable_handles
            test_remote_blob_query_stashes_row_ids_for_fetch
            test_remote_blob_query_survives_a_server_that_ignores_the_row_id_request
            test_remote_connection_jobs_surface test_remote_create_index_async_returns_job
            test_remote_job_wait_raises_on_failure
            test_remote_table_cherry_pick_defaults_to_execute""",
    },
    "python/tests/docs": {
        _SERVICES: """test_embeddings_optional.test_embeddings_openai
            test_embeddings_optional.test_embeddings_openai_async
            test_embeddings_optional.test_embeddings_secret""",
        _EMBEDDED: """test_guide_tables.test_table_with_embedding
            test_guide_tables.test_table_with_embedding_async""",
        _PANDAS: """test_python.test_pandas_and_pyarrow test_python.test_pandas_and_pyarrow_async
            test_python.test_polars test_python.test_polars_async""",
    },
}
