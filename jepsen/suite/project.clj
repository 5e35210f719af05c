(defproject rhumb-jepsen "0.1.0-SNAPSHOT"
  :description "Jepsen tests of Rhumb"
  :url "https://github.com/rhumbdb/rhumb"
  :license {:name "Apache-2.0"}
  ; 0.3.11 and no later version: in 0.3.12 and 0.3.13 jepsen.control.util/grepkill! does nothing.
  :dependencies [[org.clojure/clojure "1.12.4"]
                 [jepsen "0.3.11"]
                 [io.grpc/grpc-netty-shaded "1.68.1"]
                 [io.grpc/grpc-protobuf "1.68.1"]
                 [io.grpc/grpc-stub "1.68.1"]
                 [com.google.protobuf/protobuf-java "3.25.5"]
                 [org.apache.tomcat/annotations-api "6.0.53"]]
  :source-paths ["src"]
  ; generate.sh writes target/proto, from ../../api/*.proto.
  :java-source-paths ["java" "target/proto"]
  :javac-options ["--release" "17"]
  :jvm-opts ["-Xmx4g" "-Djava.awt.headless=true"]
  :main rhumb.jepsen.core)
