package io.rhumb.jepsen;

import com.google.protobuf.ByteString;
import rhumb.v1.Kv;

/** Change is one mutation of a write, and its condition. */
public final class Change {
  /** The first byte of a stored value without fields. */
  private static final byte OPAQUE = 0x11;

  final Kv.Mutation.Builder message;

  private Change(Kv.MutationKind kind, int table, String name, String value) {
    message = Kv.Mutation.newBuilder().setKind(kind).setTable(table).setName(ByteString.copyFromUtf8(name));
    if (value != null) {
      message.setValue(ByteString.copyFrom(new byte[] {OPAQUE}).concat(ByteString.copyFromUtf8(value)));
    }
  }

  public static Change put(int table, String name, String value) {
    return new Change(Kv.MutationKind.MUTATION_KIND_PUT, table, name, value);
  }

  public static Change insert(int table, String value) {
    return new Change(Kv.MutationKind.MUTATION_KIND_INSERT, table, "", value);
  }

  /** Makes the change conditional on the absence of the record. */
  public Change ifAbsent() {
    message.setCondition(Kv.Condition.newBuilder().setKind(Kv.ConditionKind.CONDITION_KIND_IF_ABSENT));
    return this;
  }

  /** Makes the change conditional on the version that a read returned. */
  public Change ifVersion(Value read) {
    message.setCondition(
        Kv.Condition.newBuilder().setKind(Kv.ConditionKind.CONDITION_KIND_IF_VERSION).setHlc(read.hlc).setNode(read.node));
    return this;
  }

  /** Makes the change conditional on the record being as it was read: absent, or of the same version. */
  public Change ifSame(Value read) {
    return read.exists() ? ifVersion(read) : ifAbsent();
  }

  /** Returns the text of a stored value. */
  static String text(ByteString stored) {
    if (stored.isEmpty() || stored.byteAt(0) != OPAQUE) {
      throw new IllegalStateException("the stored value has another form: " + stored);
    }
    return stored.substring(1).toStringUtf8();
  }
}
