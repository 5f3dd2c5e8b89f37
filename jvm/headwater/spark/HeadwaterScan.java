package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.*;
import java.util.*;
import org.apache.spark.sql.connector.read.*;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.errors.QueryCompilationErrors;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;

/**
 * What a query asks of topics. Columns that it does not use are not made; filters and a limit keep from being read what
 * they rule out, and Spark looks at each row again, so that they need rule out nothing.
 */
final class HeadwaterScan
    implements Scan, Batch, SupportsPushDownRequiredColumns, SupportsPushDownFilters, SupportsPushDownLimit {
  private static final Map<String, String> TESTS = Map.of("EqualTo", "=", "EqualNullSafe", "=", "In", "in",
      "LessThan", "<", "LessThanOrEqual", "<=", "GreaterThan", ">", "GreaterThanOrEqual", ">=",
      "StringStartsWith", "starts");
  private static final Set<String> TESTS_OF_TEXT = Set.of("=", "in", "starts");

  private final Map<String, String> options;
  private final String place;
  private final HeadwaterSource.Snapshot snapshot;
  private final ArrayNode conditions = JsonNodeFactory.instance.arrayNode();
  private StructType columns;
  private Filter[] pushed = {};
  private int limit = -1;

  HeadwaterScan(Map<String, String> options, StructType columns, String place, HeadwaterSource.Snapshot snapshot) {
    this.options = options;
    this.columns = columns;
    this.place = place;
    this.snapshot = snapshot;
  }

  @Override public void pruneColumns(StructType required) { columns = required; }

  @Override public Filter[] pushFilters(Filter[] filters) {
    pushed = Arrays.stream(filters).filter(this::isTaken).toArray(Filter[]::new);
    return filters;
  }

  @Override public Filter[] pushedFilters() { return pushed; }

  @Override public boolean pushLimit(int rows) {
    limit = rows;
    return true;
  }

  @Override public boolean isPartiallyPushed() { return true; }

  private boolean isTaken(Filter filter) {
    String test = TESTS.get(filter.getClass().getSimpleName());
    if (test == null) {
      return false;
    }
    Object column = ((scala.Product) filter).productElement(0);
    Object value = ((scala.Product) filter).productElement(1);
    boolean isOffset = column.equals("offset") && !test.equals("starts");
    boolean isText = (column.equals("topic") || column.equals("root")) && TESTS_OF_TEXT.contains(test);
    ArrayNode values = conditions.arrayNode();
    for (Object one : value instanceof Object[] several ? several : new Object[] {value}) {
      if (isOffset && one instanceof Long number) {
        values.add(number);
      } else if (isText && one instanceof String text) {
        values.add(text);
      } else {
        return false;
      }
    }
    conditions.addObject().put("column", column.toString()).put("test", test)
        .set("value", test.equals("in") ? values : values.get(0));
    return true;
  }

  @Override public Scan build() { return this; }
  @Override public StructType readSchema() { return columns; }

  @Override public String description() {
    return "headwater " + place + " (in Spark's own process), columns: " + Arrays.toString(columns.fieldNames())
        + ", pushed: " + Arrays.toString(pushed) + (limit < 0 ? "" : ", limit: " + limit);
  }

  @Override public ColumnarSupportMode columnarSupportMode() { return ColumnarSupportMode.SUPPORTED; }
  @Override public Batch toBatch() { return this; }

  @Override public MicroBatchStream toMicroBatchStream(String checkpoint) {
    return new HeadwaterStream(options, columns);
  }

  @Override public InputPartition[] planInputPartitions() {
    synchronized (snapshot) {  // one frame may be planned by several threads at once
      ObjectNode asked = Planner.planning("plan", options).set("conditions", conditions);
      try (Planner planner = Planner.of(Planner.python())) {
        JsonNode told = planner.ask(asked.set("ends", snapshot.ends));
        snapshot.ends = told.get("ends");
        return SpansReader.partitions(told, options);
      } catch (HeadwaterSource.Failed error) { throw refused("plan", error); }
    }
  }

  @Override public PartitionReaderFactory createReaderFactory() { return new SpansReader.Factory(columns, limit); }

  /** An error as Spark has it of a source in Python. */
  static RuntimeException refused(String action, HeadwaterSource.Failed error) {
    HeadwaterScan.<RuntimeException>raise(
        QueryCompilationErrors.pythonDataSourceError(action, HeadwaterSource.NAME, error.said));
    return error;
  }

  @SuppressWarnings("unchecked")
  private static <E extends Throwable> void raise(Throwable error) throws E {
    throw (E) error;  // Scala's methods do not say what they throw, and Spark expects this one
  }
}
