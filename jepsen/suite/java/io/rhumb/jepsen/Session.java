package io.rhumb.jepsen;

import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import io.grpc.ConnectivityState;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.io.File;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import rhumb.v1.ClusterGrpc;
import rhumb.v1.ClusterOuterClass;
import rhumb.v1.Errors;
import rhumb.v1.KVGrpc;
import rhumb.v1.Kv;
import rhumb.v1.Meta;

/**
 * Session is a client of one process of a test, bound to one node. The node passes requests on to the primary. A Session is used by one
 * thread at a time, so its writes have increasing numbers and none overtakes another.
 */
public final class Session implements AutoCloseable {
  /** How often a node may pass a request on. */
  private static final int HOPS = 3;
  /** The time for one attempt, and the number of attempts of a write. */
  private static final long ATTEMPT_MS = 2_500;
  private static final int ATTEMPTS = 2;

  /** The kinds of errors that say that a write was not applied. */
  private static final Set<Errors.Kind> NOT_APPLIED =
      EnumSet.of(
          Errors.Kind.KIND_INVALID_ARGUMENT, Errors.Kind.KIND_NOT_FOUND, Errors.Kind.KIND_ALREADY_EXISTS,
          Errors.Kind.KIND_CONDITION_FAILED, Errors.Kind.KIND_NOT_PRIMARY, Errors.Kind.KIND_UNAVAILABLE,
          Errors.Kind.KIND_OVERLOADED, Errors.Kind.KIND_UNAUTHENTICATED, Errors.Kind.KIND_PERMISSION_DENIED,
          Errors.Kind.KIND_CANCELED, Errors.Kind.KIND_TOO_LARGE, Errors.Kind.KIND_DISK_FULL,
          Errors.Kind.KIND_WRONG_CLUSTER, Errors.Kind.KIND_INCOMPATIBLE, Errors.Kind.KIND_CONFLICT);

  private final ManagedChannel channel;
  private final KVGrpc.KVBlockingStub kv;
  private final ClusterGrpc.ClusterBlockingStub cluster;
  private final long clientHigh = ThreadLocalRandom.current().nextLong();
  private final long clientLow = ThreadLocalRandom.current().nextLong();
  private long seq;

  /** Opens a session on a node. The folder holds ca.crt, user.crt and user.key. */
  public Session(String host, int port, String folder) throws Exception {
    channel = Transport.open(host, port, new File(folder));
    kv = KVGrpc.newBlockingStub(channel);
    cluster = ClusterGrpc.newBlockingStub(channel);
  }

  @Override
  public void close() {
    channel.shutdownNow();
  }

  /**
   * Returns a stub with the deadline of one attempt. gRPC waits up to two minutes before it connects to a killed node again, longer than
   * the node is down, so each call ends that pause: the operations themselves are paced.
   */
  private <S extends io.grpc.stub.AbstractStub<S>> S timed(S stub) {
    if (channel.getState(false) == ConnectivityState.TRANSIENT_FAILURE) {
      channel.resetConnectBackoff();
    }
    return stub.withDeadlineAfter(ATTEMPT_MS, TimeUnit.MILLISECONDS);
  }

  private Meta.Metadata metadata() throws Failure {
    try {
      return timed(cluster).getMetadata(ClusterOuterClass.GetMetadataRequest.getDefaultInstance());
    } catch (StatusRuntimeException e) {
      throw failure(e);
    }
  }

  /** Returns the numbers of tables by name. */
  public Map<String, Integer> tables() throws Failure {
    Map<String, Integer> out = new LinkedHashMap<>();
    for (Meta.Table t : metadata().getTablesList()) {
      out.put(t.getName(), t.getId());
    }
    return out;
  }

  /** Returns the numbers of regions by name. */
  public Map<String, Integer> regions() throws Failure {
    Map<String, Integer> out = new LinkedHashMap<>();
    for (Meta.Region r : metadata().getRegionsList()) {
      out.put(r.getName(), r.getId());
    }
    return out;
  }

  /** Returns the ranges of a region that can have records of a table, each as its first and last slot. */
  public List<int[]> ranges(int table, int region) throws Failure {
    Meta.Metadata m = metadata();
    int kind = 0;
    for (Meta.Table t : m.getTablesList()) {
      if (t.getId() == table) {
        kind = t.getClass_();
      }
    }
    List<int[]> out = new ArrayList<>();
    for (Meta.Range r : m.getRangesList()) {
      if (r.getRegion() == region && r.getClass_() == kind) {
        out.add(new int[] {r.getSlot(), Math.max(r.getLast(), r.getSlot())});
      }
    }
    return out;
  }

  /** Reads records by their names. The answer includes everything that was acknowledged before the request. */
  public List<Value> read(int table, int region, List<String> names) throws Failure {
    Kv.Read.Builder read = Kv.Read.newBuilder().setTable(table).setRegion(region).setResolve(true);
    for (String name : names) {
      read.addNames(ByteString.copyFromUtf8(name));
    }
    Kv.Response answer = call(Kv.Request.newBuilder().setRead(read));
    List<Value> values = new ArrayList<>();
    for (Kv.Item item : answer.getItemsList()) {
      values.add(new Value(item));
    }
    return values;
  }

  /**
   * Writes a batch of named records of one range: all of it or nothing. An attempt without an answer is repeated under the same request
   * ID. Once an attempt had no answer, only a success is definite: the first attempt may still arrive.
   */
  public void write(int region, List<Change> changes) throws Failure {
    Kv.Request.Builder request = request(region, changes);
    Failure unknown = null;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
      try {
        call(request);
        return;
      } catch (Failure f) {
        if (unknown == null && f.definite) {
          throw f;
        }
        unknown = unknown == null ? f : unknown;
      }
    }
    throw unknown;
  }

  /** Inserts a record, and returns its name and the range that has it. It is not repeated: another attempt could be another record. */
  public Inserted insert(int region, Change change) throws Failure {
    Kv.Response answer = call(request(region, List.of(change)));
    return new Inserted(answer.getOutcome().getNames(0).toStringUtf8(), answer.getReceipt().getHome(), answer.getReceipt().getSlot());
  }

  /** Inserted is where an insert was written. */
  public record Inserted(String name, int region, int slot) {}

  private Kv.Request.Builder request(int region, List<Change> changes) {
    Kv.Write.Builder write = Kv.Write.newBuilder().setRegion(region).setResolve(true);
    write.setClientHigh(clientHigh).setClientLow(clientLow).setSeq(++seq);
    for (Change c : changes) {
      write.addMutations(c.message);
    }
    return Kv.Request.newBuilder().setWrite(write);
  }

  /** Scans one range: all records of a table in the slots from first to last, in the order of their names. */
  public List<Value> scan(int table, int region, int first, int last) throws Failure {
    Kv.ScanRequest request =
        Kv.ScanRequest.newBuilder()
            .setTable(table).setRegion(region).setSlot(first).setLast(last).setTimeoutUs(ATTEMPT_MS * 1000).build();
    List<Value> values = new ArrayList<>();
    try {
      Iterator<Kv.ScanPage> pages = timed(kv).scan(request);
      while (pages.hasNext()) {
        for (Kv.Item item : pages.next().getItemsList()) {
          values.add(new Value(item));
        }
      }
    } catch (StatusRuntimeException e) {
      throw failure(e);
    }
    return values;
  }

  private Kv.Response call(Kv.Request.Builder request) throws Failure {
    Kv.Response answer;
    try {
      answer = timed(kv).withWaitForReady().do_(request.setHops(HOPS).setTimeoutUs(ATTEMPT_MS * 1000).build());
    } catch (StatusRuntimeException e) {
      throw failure(e);
    }
    if (answer.hasError()) {
      throw failure(answer.getError(), null);
    }
    return answer;
  }

  private static Failure failure(Errors.Error error, Throwable cause) {
    String kind = error.getKind().name().replaceFirst("^KIND_", "");
    return new Failure(NOT_APPLIED.contains(error.getKind()), kind, error.getMessage(), cause);
  }

  /** Returns the error of a node in a status, or one of the transport, whose effect is unknown. */
  private static Failure failure(StatusRuntimeException e) {
    com.google.rpc.Status status = StatusProto.fromThrowable(e);
    if (status != null) {
      for (Any detail : status.getDetailsList()) {
        if (detail.is(Errors.Error.class)) {
          try {
            return failure(detail.unpack(Errors.Error.class), e);
          } catch (com.google.protobuf.InvalidProtocolBufferException broken) {
            break;
          }
        }
      }
    }
    // A connection that was refused carried no request.
    boolean refused = false;
    for (Throwable t = e; t != null; t = t.getCause()) {
      refused |= t instanceof java.net.ConnectException;
    }
    return new Failure(refused, "TRANSPORT_" + e.getStatus().getCode(), String.valueOf(e.getStatus().getDescription()), e);
  }
}
