package headwater.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.*;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.classic.SparkSession;

/**
 * A Python process beside Spark's that plans, and reads what is not simply there: {@code headwater.spark.planner}.
 *
 * <p>It is asked in lines of JSON and answers in them. One that is closed waits for whoever asks next; it ends with this
 * process, or when it fails.
 */
final class Planner implements AutoCloseable {
  private static final int IDLE_MAX = 4;
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Deque<Planner> IDLE = new ArrayDeque<>();

  private final String python;
  private final Process process;
  private final InputStream answers;
  private boolean isWhole = true;

  private Planner(String python) {
    this.python = python;
    ProcessBuilder command = new ProcessBuilder(python, "-m", "headwater.spark.planner");
    command.redirectError(ProcessBuilder.Redirect.INHERIT);
    command.environment().merge("PYTHONPATH", PythonUtils.sparkPythonPath(), (a, b) -> a + File.pathSeparator + b);
    try {
      process = command.start();
    } catch (IOException error) {
      throw new HeadwaterSource.Failed("no Python answers as \"" + python + "\"; name one in PYSPARK_PYTHON", error);
    }
    answers = new BufferedInputStream(process.getInputStream(), 1 << 16);
  }

  /** The Python that Spark's workers have. */
  static String python() {
    String workers = System.getenv().getOrDefault("PYSPARK_PYTHON", "python3");
    return SparkEnv.get() == null ? workers : SparkEnv.get().conf().get("spark.pyspark.python", workers);
  }

  static Planner of(String python) {
    synchronized (IDLE) {
      IDLE.removeIf(idle -> !idle.process.isAlive());
      Optional<Planner> found = IDLE.stream().filter(idle -> idle.python.equals(python)).findFirst();
      if (found.isPresent()) {
        IDLE.remove(found.get());
        return found.get();
      }
    }
    return new Planner(python);
  }

  static ObjectNode request(String what, Map<String, String> options) {
    return JSON.createObjectNode().put("ask", what).set("options", JSON.valueToTree(options));
  }

  /** The same of a read, which is cut for the cores that the cluster has. */
  static ObjectNode planning(String what, Map<String, String> options) {
    return request(what, options).put("cores", SparkSession.active().sparkContext().defaultParallelism());
  }

  static JsonNode parse(String text) {
    try {
      return JSON.readTree(text);
    } catch (JsonProcessingException error) { throw new HeadwaterSource.Failed("no JSON: " + text, error); }
  }

  /** What it answers; an error of Headwater's is thrown. */
  JsonNode ask(JsonNode request) {
    isWhole = false;
    try {
      process.getOutputStream().write((request + "\n").getBytes(StandardCharsets.UTF_8));
      process.getOutputStream().flush();
      return answer();
    } catch (IOException error) { throw gone(error); }
  }

  /** The next line; after one that says "more", another follows. */
  JsonNode answer() throws IOException {
    ByteArrayOutputStream line = new ByteArrayOutputStream(256);
    for (int found = answers.read(); found != '\n'; found = answers.read()) {
      if (found < 0) {
        throw new EOFException();
      }
      line.write(found);
    }
    JsonNode told = parse(line.toString(StandardCharsets.UTF_8));
    isWhole = !told.path("more").asBoolean();
    if (told.has("error")) {
      throw new HeadwaterSource.Failed(told.get("error").asText(), null);
    }
    return told;
  }

  byte[] bytes(int count) throws IOException {
    byte[] found = answers.readNBytes(count);
    if (found.length < count) {
      throw new EOFException();
    }
    return found;
  }

  HeadwaterSource.Failed gone(IOException error) {
    return new HeadwaterSource.Failed("the process that plans for Spark, " + python + " -m headwater.spark.planner, "
        + "ended; Spark's log has what it said", error);
  }

  /** Let others have it, if it has answered all that it was asked. */
  @Override public void close() {
    synchronized (IDLE) {
      if (isWhole && IDLE.size() < IDLE_MAX) {
        IDLE.push(this);
        return;
      }
    }
    process.destroy();
  }
}
