package io.rhumb.jepsen;

import rhumb.v1.Kv;

/** Value is a record as a read returned it. */
public final class Value {
  /** The name; empty in the answer to a read by names. */
  public final String name;
  /** The value, null if the record does not exist. */
  public final String text;

  final long hlc;
  final int node;

  Value(Kv.Item item) {
    name = item.getName().toStringUtf8();
    hlc = item.getHlc();
    node = item.getNode();
    text = hlc == 0 ? null : Change.text(item.getValue());
  }

  /** Reports whether the record exists. */
  public boolean exists() {
    return hlc != 0;
  }
}
