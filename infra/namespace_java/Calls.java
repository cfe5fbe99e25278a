import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.lance.namespace.client.apache.ApiClient;
import org.lance.namespace.client.apache.ApiException;
import org.lance.namespace.client.apache.api.DataApi;
import org.lance.namespace.client.apache.api.IndexApi;
import org.lance.namespace.client.apache.api.NamespaceApi;
import org.lance.namespace.client.apache.api.TableApi;
import org.lance.namespace.client.apache.api.TagApi;
import org.lance.namespace.client.apache.api.TransactionApi;
import org.lance.namespace.model.DescribeTableIndexStatsRequest;
import org.lance.namespace.model.ErrorResponse;
import org.lance.namespace.model.QueryTableRequest;

/**
 * Carries out calls of Lance's namespace with the generated Java client: a JSON line each, in and
 * out, as the program in Rust does.
 */
final class Calls {
    private final ObjectMapper json;
    private final Object[] apis;
    private final NamespaceApi namespaces;
    private final TableApi tables;
    private final DataApi data;
    private final IndexApi indices;
    private final TagApi tags;

    private Calls(String url, String key) {
        ApiClient client = new ApiClient();
        client.setBasePath(url);
        client.addDefaultHeader("x-api-key", key);
        json = client.getObjectMapper();
        namespaces = new NamespaceApi(client);
        tables = new TableApi(client);
        data = new DataApi(client);
        indices = new IndexApi(client);
        tags = new TagApi(client);
        apis = new Object[] {namespaces, tables, data, indices, tags, new TransactionApi(client)};
    }

    public static void main(String[] given) throws Exception {
        Calls calls = new Calls(given[0], given[1]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            System.out.println(calls.json.writeValueAsString(calls.answered(line)));
        }
    }

    private Map<String, Object> answered(String line) throws Exception {
        Map<String, Object> answer = new HashMap<>();
        try {
            answer.put("body", carriedOut(json.readTree(line)));
            answer.put("status", 200);
        } catch (ApiException refused) {
            answer.put("status", refused.getCode());
            if (refused.getCode() == 0) {
                answer.put("error", refused.getMessage());
            } else {
                // The client keeps an error as text: its own type must take it.
                ErrorResponse error = json.readValue(refused.getResponseBody(), ErrorResponse.class);
                answer.put("code", error.getCode());
                answer.put("typed", true);
            }
        }
        return answer;
    }

    private Object carriedOut(JsonNode call) throws Exception {
        String id = call.path("id").asText(null);
        String page = call.path("page_token").asText(null);
        String mode = call.path("mode").asText(null);
        String index = call.path("index").asText(null);
        Integer limit = call.has("limit") ? call.get("limit").asInt() : null;
        switch (call.path("method").asText()) {
            case "list_namespaces":
                return namespaces.listNamespaces(id, null, page, limit);
            case "list_tables":
                return tables.listTables(id, null, page, limit, null);
            case "list_all_tables":
                return tables.listAllTables(null, page, limit, null);
            case "list_table_versions":
                return tables.listTableVersions(id, null, page, limit, flag(call, "descending"));
            case "list_table_tags":
                return tags.listTableTags(id, null, page, limit);
            case "create_table":
                return data.createTable(id, rows(call), null, mode, null, null);
            case "insert_into_table":
                return data.insertIntoTable(id, rows(call), null, mode);
            case "merge_insert_into_table":
                Boolean updates = flag(call, "update");
                Boolean inserts = flag(call, "insert");
                String on = call.get("on").asText();
                return data.mergeInsertIntoTable(
                        id, on, rows(call), null, updates, null, inserts, null, null, null, null);
            case "query_table":
                byte[] found = data.queryTable(id, request(call, QueryTableRequest.class), null);
                Files.write(Path.of(call.get("into").asText()), found);
                return null;
            case "describe_table_index_stats":
                return indices.describeTableIndexStats(
                        id, index, request(call, DescribeTableIndexStatsRequest.class), null);
            case "drop_table_index":
                return indices.dropTableIndex(id, index, null);
            case "drop_table":
                return tables.dropTable(id, null);
            default:
                return asked(call, id);
        }
    }

    /** Calls a method that takes an id or none, a request and a delimiter. */
    private Object asked(JsonNode call, String id) throws Exception {
        String[] words = call.get("method").asText().split("_");
        StringBuilder name = new StringBuilder(words[0]);
        for (int word = 1; word < words.length; word++) {
            name.append(Character.toUpperCase(words[word].charAt(0))).append(words[word].substring(1));
        }
        for (Object api : apis) {
            for (Method method : api.getClass().getMethods()) {
                Class<?>[] types = method.getParameterTypes();
                int request = types.length > 0 && types[0] == String.class ? 1 : 0;
                if (method.getName().contentEquals(name) && types.length > request + 1
                        && types[types.length - 1] != Map.class) {
                    Object[] arguments = new Object[types.length];
                    arguments[0] = id;
                    arguments[request] = request(call, types[request]);
                    if (name.toString().equals("describeTable")) {
                        arguments[4] = flag(call, "detailed");
                    }
                    try {
                        return method.invoke(api, arguments);
                    } catch (InvocationTargetException failed) {
                        throw (Exception) failed.getCause();
                    }
                }
            }
        }
        throw new IllegalArgumentException("no such method: " + name);
    }

    private <T> T request(JsonNode call, Class<T> type) {
        return json.convertValue(call.get("body"), type);
    }

    private static Boolean flag(JsonNode call, String name) {
        return call.has(name) ? call.get(name).asBoolean() : null;
    }

    private static byte[] rows(JsonNode call) throws Exception {
        return Files.readAllBytes(Path.of(call.get("rows").asText()));
    }
}
