#!/bin/sh
# Compiles the suite: the Java of the API and of the suite, and the Clojure if Jepsen can be had. Jepsen, Elle and Knossos are on Clojars
# only. Where that cannot be reached, the Clojure is read and its names are not resolved, and a message says so. JEPSEN_CLASSPATH names a class
# path with Jepsen for machines that have it in another way. What is missing on this machine altogether makes the script skip, with exit code 0.
set -eu
cd "$(dirname "$0")"

skip() {
	echo "skipped: $1"
	exit 0
}

for tool in javac java mvn protoc; do
	command -v "$tool" >/dev/null || skip "$tool is missing; the suite needs Java 17, Maven and the Debian package protobuf-compiler"
done
./generate.sh >/dev/null 2>&1 || skip "Maven Central does not answer, which has the plugin of protoc"

# pom WORD...: writes a project with those dependencies of project.clj whose names contain none of the words.
pom() {
	left=$(sed -n 's/^.*\[\([a-z][a-z0-9.\/-]*\) "\([0-9][^"]*\)"\].*$/\1 \2/p' project.clj)
	for word in "$@"; do left=$(echo "$left" | grep -v "$word"); done
	echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
	echo '<groupId>rhumb</groupId><artifactId>suite</artifactId><version>1</version>'
	echo '<repositories><repository><id>clojars</id><url>https://repo.clojars.org/</url></repository></repositories><dependencies>'
	# A name without a group is its own group, as in Leiningen.
	echo "$left" | sed 's|^\([^/ ]*\) |\1/\1 |' |
		sed 's|^\(.*\)/\(.*\) \(.*\)$|<dependency><groupId>\1</groupId><artifactId>\2</artifactId><version>\3</version></dependency>|'
	echo '</dependencies></project>'
}

# resolve NAME: prints the class path of target/NAME.xml.
resolve() {
	timeout 120 mvn -q -B -f "target/$1.xml" dependency:build-classpath -Dmdep.outputFile="$PWD/target/$1.path" >"target/$1.log" 2>&1 && cat "target/$1.path"
}

pom jepsen >target/java.xml
path=$(resolve java) || skip "Maven Central does not have the dependencies of the Java: $(tail -n 1 target/java.log)"
rm -rf target/classes
mkdir -p target/classes
find java target/proto -name '*.java' >target/sources
javac -nowarn --release 17 -cp "$path" -d target/classes @target/sources
echo "compiled the Java"

all=${JEPSEN_CLASSPATH:-}
if [ -z "$all" ]; then
	pom >target/all.xml
	all=$(resolve all) || all=
fi
if [ -z "$all" ]; then
	# The reader finds unbalanced and malformed forms.
	java -cp "$path" clojure.main -e '
		(doseq [f (file-seq (java.io.File. "src")) :when (.endsWith (.getName f) ".clj")]
		  (with-open [r (java.io.PushbackReader. (clojure.java.io/reader f))]
		    (binding [*default-data-reader-fn* tagged-literal]
		      (loop [n 0] (if (= ::end (read {:eof ::end :read-cond :allow} r)) (println "read" (str f) n "forms") (recur (inc n)))))))'
	echo "skipped: the Clojure was read and not compiled, because Clojars does not answer, which has Jepsen"
	exit 0
fi
java -Djava.awt.headless=true -cp "src:target/classes:$all" clojure.main -e "
	(binding [*warn-on-reflection* false]
	  (require 'rhumb.jepsen.core)
	  (println \"compiled the Clojure:\" (count (filter #(.startsWith (str (ns-name %)) \"rhumb.jepsen\") (all-ns))) \"namespaces\"))
	(shutdown-agents)"
