package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.*;
import org.apache.spark.sql.connector.read.*;
import org.apache.spark.sql.connector.read.streaming.*;
import org.apache.spark.sql.types.StructType;

/**
 * A stream of topics. Everything about its offsets is decided by the Python reader of streams, one for the life of this:
 * offsets are its JSON, so that a checkpoint of either reader is continued by the other.
 */
final class HeadwaterStream implements MicroBatchStream, SupportsTriggerAvailableNow, ReportsSourceMetrics {
  private final Map<String, String> options;
  private final StructType columns;
  private Planner planner;

  HeadwaterStream(Map<String, String> options, StructType columns) {
    this.options = options;
    this.columns = columns;
  }

  private static final class Place extends Offset {
    private final String json;

    Place(String json) { this.json = json; }

    @Override public String json() { return json; }
  }

  private synchronized JsonNode ask(ObjectNode request) {
    try {
      if (planner == null) {
        planner = Planner.of(Planner.python());
        planner.ask(Planner.planning("stream", options));
      }
      return planner.ask(request);
    } catch (HeadwaterSource.Failed error) { throw HeadwaterScan.refused(request.get("ask").asText(), error); }
  }

  private static ObjectNode request(String what) { return Planner.request(what, Map.of()); }

  private static Offset place(JsonNode told) {
    return told.has("place") ? new Place(told.get("place").asText()) : null;
  }

  @Override public Offset initialOffset() { return place(ask(request("initial"))); }
  @Override public Offset deserializeOffset(String json) { return new Place(json); }

  @Override public ReadLimit getDefaultReadLimit() {
    long rows = ask(request("limit")).get("rows").asLong();
    return rows == 0 ? ReadLimit.allAvailable() : ReadLimit.maxRows(rows);
  }

  @Override public void prepareForTriggerAvailableNow() { ask(request("available_now")); }

  @Override public Offset latestOffset() {
    throw new UnsupportedOperationException("Spark asks with a start and a limit");
  }

  @Override public Offset latestOffset(Offset start, ReadLimit limit) {
    long rows = limit instanceof ReadMaxRows most ? most.maxRows() : 0;
    return place(ask(request("latest").put("start", start.json()).put("rows", rows)));
  }

  @Override public Offset reportLatestOffset() { return place(ask(request("report"))); }

  @Override public Map<String, String> metrics(Optional<Offset> end) {
    Map<String, String> found = new HashMap<>();
    if (end.isPresent()) {
      ask(request("metrics").put("end", end.get().json())).get("metrics").properties()
          .forEach(one -> found.put(one.getKey(), one.getValue().asText()));
    }
    return found;
  }

  @Override public InputPartition[] planInputPartitions(Offset start, Offset end) {
    ObjectNode asked = request("partitions").put("start", start.json()).put("end", end.json());
    return SpansReader.partitions(ask(asked), options);
  }

  @Override public PartitionReaderFactory createReaderFactory() { return new SpansReader.Factory(columns, -1); }
  @Override public void commit(Offset end) { ask(request("commit").put("end", end.json())); }

  @Override public synchronized void stop() {
    if (planner != null) {
      try (Planner left = planner) {
        planner = null;
        left.ask(request("stop"));
      } catch (HeadwaterSource.Failed error) {
        // it has ended, and with it all that it had open
      }
    }
  }
}
