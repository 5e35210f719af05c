package io.rhumb.jepsen;

/** Failure is a request that did not succeed. */
public final class Failure extends Exception {
  private static final long serialVersionUID = 1;
  /** Whether the request certainly had no effect, and has none later. */
  public final boolean definite;
  /** The name of the error kind without its prefix, such as CONDITION_FAILED. */
  public final String kind;

  Failure(boolean definite, String kind, String message, Throwable cause) {
    super(kind + ": " + message, cause);
    this.definite = definite;
    this.kind = kind;
  }
}
