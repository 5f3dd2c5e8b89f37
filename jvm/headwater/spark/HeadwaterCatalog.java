package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.*;
import java.util.stream.StreamSupport;
import org.apache.spark.sql.catalyst.analysis.*;
import org.apache.spark.sql.connector.catalog.*;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The topics of a bus as tables, by {@code spark.sql.catalog.NAME}: each root is one, and so is each filter; beside them
 * are the tables of the namespace {@code state}. What there is, Python says, each time that it is asked.
 */
public final class HeadwaterCatalog implements TableCatalog, SupportsNamespaces {
  private String name;
  private Map<String, String> options;

  @Override public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    this.options = new HashMap<>(options);
  }

  @Override public String name() { return name; }

  private JsonNode ask(String what, String[] namespace, String table) {
    ObjectNode asked = Planner.request(what, options).put("namespace", String.join(".", namespace)).put("table", table);
    try (Planner planner = Planner.of(Planner.python())) {
      return planner.ask(asked);
    } catch (HeadwaterSource.Failed error) { throw HeadwaterScan.refused(what, error); }
  }

  private static String[] texts(JsonNode told) {
    return StreamSupport.stream(told.spliterator(), false).map(JsonNode::asText).toArray(String[]::new);
  }

  @Override public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    loadNamespaceMetadata(namespace);
    return Arrays.stream(texts(ask("tables", namespace, null).get("tables")))
        .map(table -> Identifier.of(namespace, table)).toArray(Identifier[]::new);
  }

  @Override public Table loadTable(Identifier table) throws NoSuchTableException {
    JsonNode told = ask("table", table.namespace(), table.name());
    if (!told.has("schema")) {
      throw new NoSuchTableException(table);
    }
    Map<String, String> given = new HashMap<>();
    told.get("options").properties()
        .forEach(option -> given.put(OPTION_PREFIX + option.getKey(), option.getValue().asText()));
    HeadwaterSource source = new HeadwaterSource();
    source.setShortName(HeadwaterSource.NAME);
    String schema = told.get("schema").asText();
    boolean isJson = schema.startsWith("{");
    return new HeadwaterTable(
        source, isJson ? (StructType) DataType.fromJson(schema) : StructType.fromDDL(schema), given);
  }

  private UnsupportedOperationException refused() {
    return new UnsupportedOperationException("a table of catalog " + name + " is the topics of a bus: it is there once "
        + "something is published to them, as INSERT INTO " + name + ".`alerts/#` does; it is not made, changed or dropped");
  }

  @Override public Table createTable(Identifier table, TableInfo made) { throw refused(); }
  @Override public Table alterTable(Identifier table, TableChange... changes) { throw refused(); }
  @Override public boolean dropTable(Identifier table) { throw refused(); }
  @Override public void renameTable(Identifier table, Identifier other) { throw refused(); }

  @Override public String[][] listNamespaces() {
    return Arrays.stream(texts(ask("namespaces", new String[0], null).get("namespaces")))
        .map(found -> new String[] {found}).toArray(String[][]::new);
  }

  @Override public String[][] listNamespaces(String[] namespace) {
    return namespace.length == 0 ? listNamespaces() : new String[0][];
  }

  @Override public Map<String, String> loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length > 0 && Arrays.stream(listNamespaces()).noneMatch(found -> Arrays.equals(found, namespace))) {
      throw new NoSuchNamespaceException(namespace);
    }
    return Map.of();
  }

  @Override public void createNamespace(String[] namespace, Map<String, String> metadata) { throw refused(); }
  @Override public void alterNamespace(String[] namespace, NamespaceChange... changes) { throw refused(); }
  @Override public boolean dropNamespace(String[] namespace, boolean cascade) { throw refused(); }
}
