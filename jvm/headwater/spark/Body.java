package headwater.spark;

import java.util.*;
import java.util.function.Predicate;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The columns of a body, where they lie in memory: {@code store/body.py} draws it, and {@code arrow/columns.py} reads it
 * in Python. Nothing in it is believed before it was looked at, and no place outside of it is ever read.
 */
final class Body {
  private static final int KEYS = 1;
  private static final int HEADERS = 2;
  private static final int RETAIN = 4;
  private static final int EXPIRIES = 8;
  private static final int DICTIONARIES_MAX = 256;

  /** Why these bytes are no body. */
  static final class Bad extends Exception {
    Bad(String why) { super(why); }
  }

  /** Values of varying length: where their ends stand, and their bytes. */
  record Values(long ends, long bytes, int count) {
    long start(int row) { return bytes + int32(ends, row); }

    int length(int row) { return int32(ends, row + 1) - int32(ends, row); }

    UTF8String text(int row) { return UTF8String.fromAddress(null, start(row), length(row)); }
  }

  /** What was purged: all that its topics match, or what has this key; null is whatever key. */
  record Purge(Predicate<String> hides, long upto, UTF8String key) {}

  /** Topics of a body, which of them are wanted, and up to where they were purged. */
  static final class Dictionary {
    final UTF8String[] names;
    final boolean[] wants;
    final long[] purgedUpto;
    boolean wantsAll = true;
    boolean wantsAny;
    boolean isPurged;

    Dictionary(Values texts, Predicate<String> wanted, List<Purge> purges) throws Bad {
      names = new UTF8String[texts.count];
      wants = new boolean[texts.count];
      purgedUpto = new long[texts.count];
      for (int at = 0; at < texts.count; at++) {
        names[at] = texts.text(at).copy();
        if (!names[at].isValid()) {
          throw new Bad("a topic is not UTF-8");
        }
        String name = names[at].toString();
        wants[at] = wanted.test(name);
        wantsAll &= wants[at];
        wantsAny |= wants[at];
        for (Purge purge : purges) {
          if (purge.key == null && purge.hides.test(name)) {
            purgedUpto[at] = Math.max(purgedUpto[at], purge.upto);
          }
        }
        isPurged |= purgedUpto[at] > 0;
      }
    }
  }

  /** The same few hundred devices tend to come together again and again. */
  static final class Dictionaries extends LinkedHashMap<UTF8String, Dictionary> {
    private final transient Predicate<String> wanted;
    private final transient List<Purge> purges;

    Dictionaries(Predicate<String> wanted, List<Purge> purges) {
      this.wanted = wanted;
      this.purges = purges;
    }

    Dictionary of(UTF8String raw, Values texts) throws Bad {
      Dictionary found = get(raw);
      if (found == null || found.names.length != texts.count) {
        found = new Dictionary(texts, wanted, purges);
        put(raw.copy(), found);
      }
      return found;
    }

    @Override protected boolean removeEldestEntry(Map.Entry<UTF8String, Dictionary> oldest) {
      return size() > DICTIONARIES_MAX;
    }
  }

  final int count;
  final Dictionary topics;
  final long index;
  final long times;
  /** This and the next two are 0 where there is no such column. */
  final long expiries;
  final long keyBits;
  final long pairs;
  final Values keys;
  final Values headerNames;
  final Values headerValues;
  final Values payloads;
  private final long begin;
  private final long length;
  private long read;

  Body(long begin, long length, Dictionaries dictionaries) throws Bad {
    this.begin = begin;
    this.length = length;
    long fixed = column(16);
    count = int32(fixed, 0);
    int topicCount = int32(fixed, 1);
    int columns = int32(fixed, 2);
    if (topicCount <= 0 || topicCount > count || count * 8L > length
        || (columns & ~(KEYS | HEADERS | RETAIN | EXPIRIES)) != 0) {
      throw new Bad("its counts are impossible");
    }
    Values names = values(topicCount);
    UTF8String raw = UTF8String.fromAddress(null, names.ends, (int) (names.start(topicCount) - names.ends));
    index = column(4L * count);
    times = column(8L * count);
    expiries = (columns & EXPIRIES) != 0 ? column(8L * count) : 0;
    if ((columns & RETAIN) != 0) {
      column(count);
    }
    keyBits = (columns & KEYS) != 0 ? column((count + 7) / 8) : 0;
    keys = keyBits != 0 ? values(count) : null;
    pairs = (columns & HEADERS) != 0 ? ends(count) : 0;
    headerNames = pairs != 0 ? texts(pair(count)) : null;
    headerValues = pairs != 0 ? texts(pair(count)) : null;
    payloads = values(count);
    topics = dictionaries.of(raw, names);
    for (int row = 0; row < count; row++) {
      if (topic(row) < 0 || topic(row) >= topicCount) {
        throw new Bad("a topic's index is outside the dictionary");
      }
    }
  }

  int topic(int row) { return int32(index, row); }

  boolean hasKey(int row) { return keyBits != 0 && (Platform.getByte(null, keyBits + row / 8) >> (row & 7) & 1) != 0; }

  /** Whether a message was purged by its key. */
  boolean isPurged(int row, long offset, Map<UTF8String, List<Purge>> byKey) {
    if (byKey.isEmpty() || !hasKey(row)) {
      return false;
    }
    String topic = topics.names[topic(row)].toString();
    return byKey.getOrDefault(keys.text(row), List.of()).stream()
        .anyMatch(purge -> offset <= purge.upto && purge.hides.test(topic));
  }

  /** The first of a message's pairs; of the one behind the last message, how many there are. */
  int pair(int row) { return int32(pairs, row); }

  private static int int32(long column, int row) { return Platform.getInt(null, column + 4L * row); }

  /** Where the next column begins, which has so many bytes. */
  private long column(long bytes) throws Bad {
    if (bytes > length - read) {
      throw new Bad("a column ends outside the body");
    }
    long found = begin + read;
    read = Math.min(length, read + bytes + 7 & -8);
    return found;
  }

  /** Where values end: they begin at 0 and never decrease. */
  private long ends(int count) throws Bad {
    long found = column(4L * count + 4);
    boolean isRight = int32(found, 0) == 0;
    for (int row = 1; row <= count; row++) {
      isRight &= int32(found, row) >= int32(found, row - 1);
    }
    if (!isRight) {
      throw new Bad("a column's offsets decrease");
    }
    return found;
  }

  private Values values(int count) throws Bad {
    long ends = ends(count);
    return new Values(ends, column(int32(ends, count)), count);
  }

  private Values texts(int count) throws Bad {
    Values found = values(count);
    for (int row = 0; row < count; row++) {
      if (!found.text(row).isValid()) {
        throw new Bad("a header is not UTF-8");
      }
    }
    return found;
  }
}
