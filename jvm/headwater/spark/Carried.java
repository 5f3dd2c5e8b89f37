package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.*;

/** Bodies that Python fetches: those of a server, and those of a folder in which something is not as it should be. */
final class Carried extends Pieces {
  private final Planner planner;
  private ByteBuffer memory = ByteBuffer.allocateDirect(1 << 20);

  /** Those of a span, from an offset on. */
  Carried(SpansReader.Partition partition, JsonNode span, long offset) {
    planner = Planner.of(partition.python());
    reached = offset;
    ObjectNode asked = Planner.request("pieces", partition.options()).set("span", span.get("span"));
    planner.ask(asked.put("offset", offset));
  }

  @Override boolean next() {
    try {
      JsonNode told = planner.answer();
      if (!told.has("first")) {
        return false;
      }
      int size = told.get("bytes").asInt();
      if (size > memory.capacity()) {
        memory = ByteBuffer.allocateDirect(size);
      }
      body = memory.clear().put(planner.bytes(size)).flip();
      deltas = told.get("deltas").asInt() > 0 ? new int[told.get("deltas").asInt()] : null;
      if (deltas != null) {
        ByteBuffer.wrap(planner.bytes(4 * deltas.length)).order(ByteOrder.LITTLE_ENDIAN).asIntBuffer().get(deltas);
      }
      offset = told.get("first").asLong();
      reached = told.get("last").asLong() + 1;
      return true;
    } catch (IOException error) { throw planner.gone(error); }
  }

  @Override public void close() { planner.close(); }
}
