package io.rhumb.jepsen;

import io.grpc.ManagedChannel;
import io.grpc.netty.shaded.io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.handler.ssl.SslContextBuilder;
import io.grpc.netty.shaded.io.netty.handler.ssl.SslProvider;
import java.io.File;
import java.io.FileInputStream;
import java.io.InputStream;
import java.net.Socket;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.List;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509ExtendedTrustManager;
import javax.net.ssl.X509TrustManager;

/** Transport opens connections to nodes of a secured cluster, with the certificate of a user. */
final class Transport {
  private Transport() {}

  /** The largest message of a node. */
  private static final int MESSAGE_MAX = 16 << 20;

  /**
   * Returns a connection to one node. The folder holds ca.crt, user.crt and user.key. The connection is made with the first request.
   */
  static ManagedChannel open(String host, int port, File folder) throws Exception {
    SslContextBuilder tls =
        GrpcSslContexts.configure(SslContextBuilder.forClient(), SslProvider.JDK)
            .protocols("TLSv1.3")
            .trustManager(trust(new File(folder, "ca.crt")))
            .keyManager(new File(folder, "user.crt"), new File(folder, "user.key"));
    return NettyChannelBuilder.forAddress(host, port)
        .sslContext(tls.build())
        .maxInboundMessageSize(MESSAGE_MAX)
        // A connection that a partition has broken is noticed, and replaced.
        .keepAliveTime(10, TimeUnit.SECONDS)
        .keepAliveTimeout(2, TimeUnit.SECONDS)
        .build();
  }

  private static TrustManager trust(File authorities) throws Exception {
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    try (InputStream in = new FileInputStream(authorities)) {
      int n = 0;
      for (Certificate c : CertificateFactory.getInstance("X.509").generateCertificates(in)) {
        store.setCertificateEntry("authority-" + n++, c);
      }
    }
    TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    factory.init(store);
    return new NodeTrust((X509TrustManager) factory.getTrustManagers()[0]);
  }

  /** NodeTrust accepts nodes of the cluster. A node is named by a URI in its certificate, and not by its address. */
  private static final class NodeTrust extends X509ExtendedTrustManager {
    private static final int URI = 6; // the type of a subject alternative name, of RFC 5280
    private final X509TrustManager chain;

    NodeTrust(X509TrustManager chain) {
      this.chain = chain;
    }

    private void check(X509Certificate[] certs, String type) throws CertificateException {
      chain.checkServerTrusted(certs, type);
      if (certs[0].getSubjectAlternativeNames() != null) {
        for (List<?> name : certs[0].getSubjectAlternativeNames()) {
          if (name.get(0).equals(URI) && name.get(1).toString().matches("rhumb://[0-9a-f]{32}/node/[a-z0-9-]+")) {
            return;
          }
        }
      }
      throw new CertificateException("the certificate names no node: " + certs[0].getSubjectAlternativeNames());
    }

    @Override
    public void checkServerTrusted(X509Certificate[] certs, String type) throws CertificateException {
      check(certs, type);
    }

    @Override
    public void checkServerTrusted(X509Certificate[] certs, String type, Socket s) throws CertificateException {
      check(certs, type);
    }

    @Override
    public void checkServerTrusted(X509Certificate[] certs, String type, SSLEngine e) throws CertificateException {
      check(certs, type);
    }

    @Override
    public void checkClientTrusted(X509Certificate[] certs, String type) throws CertificateException {
      throw new CertificateException("this is a client");
    }

    @Override
    public void checkClientTrusted(X509Certificate[] certs, String type, Socket s) throws CertificateException {
      throw new CertificateException("this is a client");
    }

    @Override
    public void checkClientTrusted(X509Certificate[] certs, String type, SSLEngine e) throws CertificateException {
      throw new CertificateException("this is a client");
    }

    @Override
    public X509Certificate[] getAcceptedIssuers() {
      return chain.getAcceptedIssuers();
    }
  }
}
