package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.*;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.*;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** Reads the spans of a task: off their segments as long as these are as they should be, and by way of Python else. */
final class SpansReader implements PartitionReader<ColumnarBatch> {
  /** What one task reads, as Python has planned it: JSON that travels to the task. */
  record Partition(String spans, HashMap<String, String> options, String python) implements InputPartition {
    @Override public String toString() {
      return "Partition";  // options may have a secret in them
    }
  }

  record Factory(StructType columns, int limit) implements PartitionReaderFactory {
    @Override public boolean supportColumnarReads(InputPartition partition) { return true; }

    @Override public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      return new SpansReader((Partition) partition, this);
    }

    @Override public PartitionReader<InternalRow> createReader(InputPartition partition) {
      throw new UnsupportedOperationException("columns, not rows");
    }
  }

  static InputPartition[] partitions(JsonNode told, Map<String, String> options) {
    List<InputPartition> made = new ArrayList<>();
    for (JsonNode each : told.get("partitions")) {
      made.add(new Partition(each.toString(), new HashMap<>(options), Planner.python()));
    }
    return made.toArray(InputPartition[]::new);
  }

  private final Partition partition;
  private final StructType columns;
  private final JsonNode plan;
  private final Iterator<JsonNode> spans;
  private long left;
  private JsonNode span;
  private Pieces pieces;
  private Rows rows;
  private Body.Dictionaries dictionaries;
  private ColumnarBatch batch;

  private SpansReader(Partition partition, Factory factory) {
    this.partition = partition;
    columns = factory.columns;
    left = factory.limit < 0 ? Long.MAX_VALUE : factory.limit;
    plan = Planner.parse(partition.spans);
    spans = plan.get("spans").iterator();
  }

  @Override public boolean next() throws IOException {
    while (left > 0) {
      if (pieces != null && pieces.next()) {
        if (hasRows()) {
          left -= batch.numRows();
          return true;
        }
      } else if (pieces instanceof Walk && pieces.reached <= span.get("last").asLong()) {
        carry(pieces.reached);
      } else if (spans.hasNext()) {
        begin(spans.next());
      } else {
        return false;
      }
    }
    return false;
  }

  @Override public ColumnarBatch get() { return batch; }

  @Override public void close() throws IOException {
    if (pieces != null) {
      pieces.close();
      pieces = null;
    }
  }

  private void begin(JsonNode next) throws IOException {
    close();
    span = next;
    List<Body.Purge> purges = new ArrayList<>();
    span.get("purges").forEach(purge -> purges.add(
        new Body.Purge(test(purge.get("topics")), purge.get("upto").asLong(), key(purge.get("key")))));
    dictionaries = new Body.Dictionaries(test(plan.get("topics")), purges);
    rows = new Rows(columns, span, plan.get("now_us").asLong(), purges.stream().filter(purge -> purge.key() != null)
        .collect(Collectors.groupingBy(Body.Purge::key)));
    long first = span.get("first").asLong();
    if (span.get("folder").isNull()) {
      carry(first);
      return;
    }
    try {
      pieces = new Walk(span);
    } catch (IOException | RuntimeException error) {
      carry(first);  // what it was, Python will say
    }
  }

  private static UTF8String key(JsonNode key) {
    return key.isNull() ? null : UTF8String.fromBytes(Base64.getDecoder().decode(key.asText()));
  }

  private static Predicate<String> test(JsonNode pattern) {
    return Pattern.compile(pattern.asText(), Pattern.DOTALL).asMatchPredicate();
  }

  private void carry(long offset) throws IOException {
    close();
    pieces = new Carried(partition, span, offset);
  }

  /** Whether the body that was reached has rows; what is none is reported, and passed over if it may be. */
  private boolean hasRows() {
    try {
      long begin = Platform.getDirectBufferAddress(pieces.body) + pieces.body.position();
      Body body = new Body(begin, pieces.body.remaining(), dictionaries);
      if (body.count != (pieces.deltas == null ? pieces.reached - pieces.offset : pieces.deltas.length)) {
        throw new Body.Bad("its offsets are not as many as its messages");
      }
      batch = rows.of(body, pieces.offset, pieces.deltas, left);
      return batch.numRows() > 0;
    } catch (Body.Bad error) {
      try (Planner planner = Planner.of(partition.python)) {
        planner.ask(Planner.request("lost", partition.options).put("reason", "damaged: " + error.getMessage())
            .put("first", pieces.offset).put("last", pieces.reached - 1).set("span", span.get("span")));
      }
      return false;
    }
  }
}
