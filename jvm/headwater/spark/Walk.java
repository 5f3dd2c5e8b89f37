package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.github.luben.zstd.Zstd;
import java.io.IOException;
import java.nio.*;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.HexFormat;
import java.util.zip.CRC32C;

/**
 * Batches off the segments of a folder, one after another from the place that was planned: {@code store/batch.py} draws
 * them. Wherever that does not lead on (a stale place, damage, a segment that is gone), it ends, and Python is asked:
 * it knows how to search, and how to name what is lost.
 */
final class Walk extends Pieces {
  private static final int READ_BYTES = 1 << 20;
  private static final int BODY_BYTES_MAX = 1 << 30;
  private static final int MAGIC = 0x31425748;  // "HWB1"
  private static final int HEADER_BYTES = 64;
  private static final int COVERED_FROM = 8;
  private static final int ZSTD = 1;

  private final Path folder;
  private final ByteBuffer root;
  private final byte[] secret;
  private final long last;
  private final CRC32C crc = new CRC32C();
  private FileChannel file;
  private long base;
  /** Where in the file the next batch is to be, and where the buffer's bytes begin. */
  private long place;
  private long filled;
  private ByteBuffer buffer = direct(READ_BYTES);
  private ByteBuffer unpacked = direct(0);

  Walk(JsonNode span) throws IOException {
    folder = Path.of(span.get("folder").asText());
    root = ByteBuffer.wrap(span.get("root").asText().getBytes(StandardCharsets.UTF_8));
    reached = span.get("first").asLong();
    last = span.get("last").asLong();
    // The seed is read here, as it never leaves the folder.
    String version = Files.readString(folder.getParent().getParent().resolve("VERSION"));
    secret = HexFormat.of().parseHex(Planner.parse(version).path("seed").asText());
    open(span.get("base").asLong(), span.get("position").asLong());
  }

  @Override boolean next() {
    if (reached > last) {
      return false;
    }
    try {
      if (isNext()) {
        return true;
      }
      if (body == null || reached == base) {
        return false;
      }
      open(reached, 0);  // the segment may have ended here
      return isNext();
    } catch (IOException | RuntimeException error) {
      return false;  // what it was, Python will say
    }
  }

  @Override public void close() throws IOException {
    if (file != null) {
      file.close();
    }
  }

  private void open(long base, long position) throws IOException {
    close();
    file = FileChannel.open(folder.resolve(String.format("%020d.log", base)), StandardOpenOption.READ);
    this.base = base;
    place = filled = position;
    buffer.limit(0);
  }

  /** Whether the next batch is whole, right, and the one that comes next; then it is what was reached. */
  private boolean isNext() throws IOException {
    if (!has(HEADER_BYTES)) {
      return false;
    }
    int at = (int) (place - filled);
    long headerBytes = u32(at + 8);
    int rootBytes = buffer.getShort(at + 58) & 0xFFFF;
    int producerBytes = buffer.getShort(at + 60) & 0xFFFF;
    if (buffer.getInt(at) != MAGIC || headerBytes != aligned(HEADER_BYTES + rootBytes + producerBytes)
        || !has(headerBytes)) { return false; }
    at = (int) (place - filled);
    crc.reset();
    crc.update(secret);
    crc.update(bytes(at + COVERED_FROM, headerBytes - COVERED_FROM));
    if (crc.getValue() != u32(at + 4) || !bytes(at + HEADER_BYTES, rootBytes).equals(root)) {
      return false;
    }
    long bodyBytes = u32(at + 12);
    long first = buffer.getLong(at + 16);
    long next = first + u32(at + 48);
    if (first > reached || reached >= next || !has(headerBytes + bodyBytes)) {
      return false;
    }
    at = (int) (place - filled);
    ByteBuffer stored = bytes(at + headerBytes, bodyBytes);
    ByteBuffer found = (buffer.getShort(at + 56) & ZSTD) != 0 ? unpacked(stored) : stored;
    crc.reset();
    crc.update(found.duplicate());
    if (crc.getValue() != u32(at + 52)) {
      return false;
    }
    body = found;
    offset = first;
    reached = next;
    place += aligned(headerBytes + bodyBytes);
    return true;
  }

  /** Whether the file has so many bytes from the place on; then the buffer has them. */
  private boolean has(long wanted) throws IOException {
    int there = (int) Math.max(0, filled + buffer.limit() - place);
    if (there >= wanted || wanted > BODY_BYTES_MAX) {
      return there >= wanted;
    }
    ByteBuffer rest = buffer.duplicate().position(buffer.limit() - there);
    buffer = (wanted > buffer.capacity() ? direct((int) wanted) : buffer.clear()).put(rest);
    filled = place;
    while (buffer.hasRemaining() && file.read(buffer, filled + buffer.position()) > 0) {
      // until the buffer is full, or the file ends
    }
    buffer.flip();
    return buffer.limit() >= wanted;
  }

  private ByteBuffer unpacked(ByteBuffer stored) throws IOException {
    long size = Zstd.getDirectByteBufferFrameContentSize(stored, stored.position(), stored.remaining());
    if (size < 0 || size > BODY_BYTES_MAX) {
      throw new IOException("a frame of " + size + " bytes");
    }
    unpacked = size > unpacked.capacity() ? direct((int) size) : unpacked;
    long made = Zstd.decompressDirectByteBuffer(unpacked, 0, (int) size, stored, stored.position(), stored.remaining());
    if (made != size) {
      throw new IOException("the body does not decompress");
    }
    return unpacked.clear().limit((int) size);
  }

  private ByteBuffer bytes(long at, long count) {
    return buffer.duplicate().limit((int) (at + count)).position((int) at);
  }

  private long u32(int at) { return Integer.toUnsignedLong(buffer.getInt(at)); }

  private static long aligned(long bytes) { return bytes + 7 & -8; }

  private static ByteBuffer direct(int bytes) {
    return ByteBuffer.allocateDirect(bytes).order(ByteOrder.LITTLE_ENDIAN);
  }
}
