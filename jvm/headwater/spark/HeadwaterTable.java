package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.*;
import org.apache.spark.sql.connector.catalog.*;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Topics as a table. Of one in a catalog Spark says the options when it is loaded, and does not say them again where it
 * is used: it keeps them, and what is said there goes before them.
 */
final class HeadwaterTable extends PythonTable {
  /** Among the options of a table in a catalog, and of no other. */
  static final String OF_CATALOG = TableCatalog.PROP_PROVIDER;

  private final HeadwaterSource.Snapshot snapshot = new HeadwaterSource.Snapshot();
  private final Map<String, String> kept;
  private final boolean isForgotten;

  HeadwaterTable(HeadwaterSource source, StructType schema, Map<String, String> given) {
    super(source, HeadwaterSource.NAME, schema);
    kept = ofCatalog(given);
    isForgotten = kept.isEmpty() && given.containsKey(OF_CATALOG);
  }

  /** What was stated of a table in a catalog, which Spark mixes with what it knows of it; nothing of any other. */
  static Map<String, String> ofCatalog(Map<String, String> given) {
    Map<String, String> stated = new HashMap<>();
    given.forEach((name, value) -> {
      if (name.startsWith(TableCatalog.OPTION_PREFIX)) {
        stated.put(name.substring(TableCatalog.OPTION_PREFIX.length()).toLowerCase(Locale.ROOT), value);
        stated.put(OF_CATALOG, HeadwaterSource.NAME);
      }
    });
    return stated;
  }

  private CaseInsensitiveStringMap options(CaseInsensitiveStringMap said) {
    Map<String, String> all = new HashMap<>(kept);
    all.putAll(said);  // its names are lower ones
    return kept.isEmpty() ? said : new CaseInsensitiveStringMap(all);
  }

  /** What is inserted into a table of a catalog is brought to its columns; anything else is left to the sink to judge. */
  @Override public Set<TableCapability> capabilities() {
    Set<TableCapability> found = EnumSet.copyOf(super.capabilities());
    if (!kept.isEmpty()) {
      found.remove(TableCapability.ACCEPT_ANY_SCHEMA);
    }
    return found;
  }

  @Override public ScanBuilder newScanBuilder(CaseInsensitiveStringMap said) {
    CaseInsensitiveStringMap options = options(said);
    JsonNode told = HeadwaterSource.described(options, schema());
    return told == null ? super.newScanBuilder(options)
        : new HeadwaterScan(options.asCaseSensitiveMap(), schema(), told.get("place").asText(), snapshot);
  }

  @Override public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    if (isForgotten) {
      throw HeadwaterScan.refused("write", new HeadwaterSource.Failed("Spark keeps no options of a table that "
          + "saveAsTable makes; make it by CREATE TABLE … USING headwater OPTIONS (url …, topics …), and write with "
          + "mode(\"append\") then", null));
    }
    CaseInsensitiveStringMap options = options(info.options());
    return super.newWriteBuilder(new LogicalWriteInfo() {
      @Override public CaseInsensitiveStringMap options() { return options; }
      @Override public String queryId() { return info.queryId(); }
      @Override public StructType schema() { return info.schema(); }
    });
  }
}
