package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;
import org.apache.spark.QueryContext;
import org.apache.spark.api.python.PythonException;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.*;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * {@code format("headwater")} where this jar is on the class path: of two sources of one name Spark takes the one in its
 * own process before the one in Python.
 *
 * <p>It is the Python source, but for one thing: messages are read by a {@link HeadwaterScan} where Python says that this
 * reader can. The sink, the other tables, and what is wrong with options stay with Python.
 */
public final class HeadwaterSource extends PythonDataSourceV2 implements DataSourceRegister {
  static final String NAME = "headwater";

  /** An error of Headwater's, in the words in which Python says it; Spark shows it as it does other errors of Python. */
  static final class Failed extends PythonException {
    final String said;

    Failed(String said, Throwable cause) {
      super("PYTHON_EXCEPTION", new scala.collection.immutable.Map.Map2<>("msg", "Headwater", "traceback", said), cause,
          new QueryContext[0], "");
      this.said = said;
    }
  }

  /** Where each root ended when a frame was first read: every later read of the frame ends there, too. */
  static final class Snapshot {
    JsonNode ends;
  }

  @Override public String shortName() { return NAME; }

  @Override public StructType inferSchema(CaseInsensitiveStringMap given) {
    Map<String, String> stated = HeadwaterTable.ofCatalog(given);
    CaseInsensitiveStringMap options = stated.isEmpty() ? given : new CaseInsensitiveStringMap(stated);
    JsonNode told = described(options, null);
    return told == null ? super.inferSchema(options) : StructType.fromDDL(told.get("schema").asText());
  }

  @Override public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return new HeadwaterTable(this, schema, properties);
  }

  /** What Python says of options that this reader serves; null where the Python source is to go on, or to complain. */
  static JsonNode described(CaseInsensitiveStringMap options, StructType schema) {
    try (Planner planner = Planner.of(Planner.python())) {
      JsonNode told = planner.ask(Planner.request("describe", options.asCaseSensitiveMap())
          .put("schema", schema == null ? null : schema.json()));
      return told.get("reader").asText().equals("jvm") ? told : null;
    } catch (Failed error) { return null; }
  }
}
