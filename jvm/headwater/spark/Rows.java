package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.*;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.types.*;
import org.apache.spark.sql.vectorized.*;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.*;

/**
 * The messages of a body as Spark's columns, without copying: each column asks the body when it is asked. Rows that are
 * not wanted (other topics, purged or expired messages, offsets outside of the span) are passed over.
 */
final class Rows {
  private final UTF8String root;
  private final long first;
  private final long last;
  private final long nowUs;
  private final Map<UTF8String, List<Body.Purge>> byKey;
  private final ColumnarBatch batch;
  private Body body;
  private long firstOffset;
  private int[] deltas;
  private int[] picked = {};
  private boolean isPicked;

  Rows(StructType columns, JsonNode span, long nowUs, Map<UTF8String, List<Body.Purge>> byKey) {
    this.nowUs = nowUs;
    this.byKey = byKey;
    root = UTF8String.fromString(span.get("root").asText());
    first = span.get("first").asLong();
    last = span.get("last").asLong();
    batch = new ColumnarBatch(Arrays.stream(columns.fields()).map(this::column).toArray(ColumnVector[]::new));
  }

  /** The rows of a body, at most so many; its messages' offsets are dense, unless it is said how far each is. */
  ColumnarBatch of(Body body, long firstOffset, int[] deltas, long rowsMax) {
    this.body = body;
    this.firstOffset = firstOffset;
    this.deltas = deltas;
    batch.setNumRows((int) Math.min(rowsMax, pick()));
    return batch;
  }

  private int pick() {
    Body.Dictionary topics = body.topics;
    boolean isWithin = offset(0) >= first && offset(body.count - 1) <= last;
    isPicked = !(isWithin && topics.wantsAll && !topics.isPurged && body.expiries == 0
        && (byKey.isEmpty() || body.keys == null));
    if (!isPicked || !topics.wantsAny) {
      return topics.wantsAny ? body.count : 0;
    }
    picked = picked.length < body.count ? new int[body.count] : picked;
    int found = 0;
    for (int row = 0; row < body.count; row++) {
      int topic = body.topic(row);
      long offset = offset(row);
      long expiry = body.expiries == 0 ? 0 : Platform.getLong(null, body.expiries + 8L * row);
      if (topics.wants[topic] && offset > topics.purgedUpto[topic] && offset >= first && offset <= last
          && (expiry <= 0 || expiry > nowUs) && !body.isPurged(row, offset, byKey)) { picked[found++] = row; }
    }
    return found;
  }

  private long offset(int row) { return firstOffset + (deltas == null ? row : deltas[row]); }

  private int row(int at) { return isPicked ? picked[at] : at; }

  private ColumnVector column(StructField field) {
    DataType type = field.dataType();
    return switch (field.name()) {
      case "root" -> text(type, root);
      case "topic" -> new Column(type) {
        @Override public UTF8String getUTF8String(int at) { return body.topics.names[body.topic(row(at))]; }
      };
      case "offset" -> new Column(type) {
        @Override public long getLong(int at) { return offset(row(at)); }
      };
      case "timestamp" -> new Column(type) {
        @Override public long getLong(int at) { return Platform.getLong(null, body.times + 8L * row(at)); }
      };
      case "key" -> new Binary(type, true);
      case "payload" -> new Binary(type, false);
      case "headers" -> new Headers((MapType) type);
      default -> throw new IllegalArgumentException("no column " + field.name());
    };
  }

  private static ConstantColumnVector text(DataType type, UTF8String value) {
    ConstantColumnVector made = new ConstantColumnVector(1, type);
    made.setUtf8String(value);
    return made;
  }

  /** Spark's, which has the same in all rows, until a kind of it says otherwise. */
  private abstract static class Column extends ConstantColumnVector {
    Column(DataType type) { super(1, type); }
  }

  /** Keys or payloads. */
  private final class Binary extends Column {
    private final boolean isKey;

    Binary(DataType type, boolean isKey) {
      super(type);
      this.isKey = isKey;
    }

    @Override public boolean hasNull() { return isKey; }
    @Override public boolean isNullAt(int at) { return isKey && !body.hasKey(row(at)); }
    @Override public byte[] getBinary(int at) { return isNullAt(at) ? null : getBinaryView(at).getBytes(); }

    @Override public BinaryView getBinaryView(int at) {
      int row = row(at);
      Body.Values values = isKey ? body.keys : body.payloads;
      return isNullAt(at) ? null : BinaryView.fromAddress(null, values.start(row), values.length(row));
    }
  }

  /** Maps; of a name that a message has twice, the last counts. */
  private final class Headers extends Column {
    private final DataType text;

    Headers(MapType type) {
      super(type);
      text = type.keyType();
    }

    @Override public ColumnarMap getMap(int at) {
      int row = row(at);
      int begin = body.pairs == 0 ? 0 : body.pair(row);
      int end = body.pairs == 0 ? 0 : body.pair(row + 1);
      Set<UTF8String> names = new HashSet<>();
      ArrayDeque<Integer> kept = new ArrayDeque<>();
      for (int pair = end - 1; pair >= begin; pair--) {
        if (names.add(body.headerNames.text(pair))) {
          kept.push(pair);
        }
      }
      return new ColumnarMap(new Texts(text, body.headerNames, kept), new Texts(text, body.headerValues, kept), 0,
          kept.size());
    }
  }

  private static final class Texts extends Column {
    private final UTF8String[] texts;

    Texts(DataType type, Body.Values values, Collection<Integer> places) {
      super(type);
      texts = places.stream().map(place -> values.text(place).copy()).toArray(UTF8String[]::new);
    }

    @Override public UTF8String getUTF8String(int at) { return texts[at]; }
  }
}
