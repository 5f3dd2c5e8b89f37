package headwater.spark;

import java.io.Closeable;
import java.nio.ByteBuffer;

/** Bodies of a span, one after another; the memory of one is used again for the next. */
abstract class Pieces implements Closeable {
  /** In direct memory. */
  ByteBuffer body;
  /** Of its first message. */
  long offset;
  /** How far each message is from the first; null if they are dense. */
  int[] deltas;
  /** The offset after those that were handed out. */
  long reached;

  /** Whether there is another one. */
  abstract boolean next();
}
