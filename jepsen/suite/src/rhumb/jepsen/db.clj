(ns rhumb.jepsen.db
  "Installs, starts, kills and pauses nodes of a secured cluster over SSH."
  (:require [clojure.java.io :as io]
            [clojure.string :as str]
            [clojure.tools.logging :refer [info]]
            [jepsen.control :as c]
            [jepsen.control.util :as cu]
            [jepsen.core :as jepsen]
            [jepsen.db :as db]
            [jepsen.lazyfs :as lazyfs]
            [jepsen.store :as store]
            [jepsen.util :as util])
  (:import (java.security MessageDigest)
           (java.util HexFormat)))

(def dir "The folder of everything on a node." "/opt/rhumb-jepsen")
(def data (str dir "/data"))
(def clock-file "Holds the error of the clock of the node." (str dir "/clock"))
(def log-file (str dir "/rhumb.log"))
(def authority "The folder of the authority, on the first node." (str dir "/authority"))
(def authority-log (str dir "/authority.log"))
(def table "The table of all workloads." "jepsen")
(def port 7600)
(def boot-seconds "How long a cluster may take to come up, or to be whole after faults." 180)

(defn address
  "The address of a node, as the machine of the test resolves its name."
  [node]
  (.getHostAddress (java.net.InetAddress/getByName node)))

(defn node-name
  "The name of a node in its certificate. The nodes of a test may be addresses."
  [test node]
  (str "n" (inc (.indexOf ^java.util.List (:nodes test) node))))

(defn region
  "The region of a node: the nodes take the regions of the option :topology in turn."
  [test node]
  (nth (:topology test) (.indexOf ^java.util.List (:nodes test) node)))

(defn regions [test] (distinct (:topology test)))

(defn binary [] (str dir "/bin/rhumb"))

(defn- sha256 [file]
  (with-open [in (io/input-stream file)]
    (let [digest (MessageDigest/getInstance "SHA-256")
          buffer (byte-array 65536)]
      (loop []
        (let [n (.read in buffer)]
          (when (pos? n)
            (.update digest buffer 0 n)
            (recur))))
      (.formatHex (HexFormat/of) (.digest digest)))))

(defn install!
  "Copies the program from this machine, unless the node has it already."
  [test]
  (c/exec :mkdir :-p (str dir "/bin"))
  (let [wanted (sha256 (:rhumb test))
        present (first (str/split (c/exec :sha256sum (binary) (c/lit "||") :true) #"\s"))]
    (when-not (= wanted present)
      (info "installs" (:rhumb test))
      (c/upload (:rhumb test) (binary))
      (c/exec :chmod "0755" (binary)))))

(defn pids
  "The processes of the node. The authority is another command of the same program."
  []
  (->> (c/exec :pgrep :-f :--ignore-ancestors "rhumb start" (c/lit "||") :true)
       str/split-lines (remove str/blank?) vec))

(defn signal!
  "Sends a signal to the node, and returns the processes that got it."
  [sig]
  (let [ps (pids)]
    (when (seq ps)
      (c/exec :kill (str "-" (name sig)) ps (c/lit "||") :true))
    ps))

(def pid-file (str dir "/rhumb.pid"))

(defn- await-ended
  "Waits until the former process of the node is gone, for ten seconds. A process that ends has no command line any more, so pgrep passes over it,
  but start-stop-daemon takes it for the node and starts nothing. After that time its number belongs to another process."
  []
  (c/exec :bash :-c (str "for i in $(seq 200); do kill -0 $(cat " pid-file ") 2>/dev/null || break; sleep 0.05; done; rm -f " pid-file)))

(defn start-node!
  "Starts the node of a host, unless it runs or has left the cluster."
  [test node]
  (cond
    ; Another fault of the same test may want to start all nodes. The token of one that left is used up.
    (= :gone (get @(:leaving test) node)) :gone
    (seq (pids)) :already-running
    :else
    (do (await-ended)
        (cu/start-daemon!
          {:chdir dir :logfile log-file :pidfile pid-file :match-executable? false
           :env {:GOTRACEBACK "all"}}
          (binary) :start
          :--dir data
          :--region (region test node)
          :--zone (str "z" (inc (.indexOf ^java.util.List (:nodes test) node)))
          :--advertise (address node)
          (mapcat (fn [n] [:--join (address n)]) (:nodes test))
          :--token (str dir "/token")
          :--memory (:memory test)
          (if (:node-log test) [:--experimental-node-log] [])
          :--clock-error-file clock-file)
        :started)))

(defn kill-node! []
  (let [ps (signal! :KILL)]
    (util/await-fn (fn [] (when (seq (pids)) (throw (ex-info "still runs" {}))) true)
                   {:timeout 10000 :retry-interval 50 :log-interval 5000})
    ps))

(def ^:private lazy-script
  "Orders for the LazyFS whose folder is the first argument. LazyFS reads one order at a time and has no answer but its log."
  "set -e
cd \"$1\"
from=$(( $(wc -l <log) + 1 ))
order() {
  echo \"lazyfs::$1\" | timeout 5 tee fifo >/dev/null
  for i in $(seq 200); do
    if tail -n +$from log | grep -q \"$2\"; then return; fi
    sleep 0.05
  done
  echo \"LazyFS did not obey $1\" >&2
  exit 1
}
")

(def ^:private lose-script
  "Makes LazyFS forget what was not synced. Prints how many bytes of how many files that was, how many of these files are of the database, and how
  full the cache of LazyFS is in percent: a full cache lets writes through to the disk."
  (str lazy-script "order unsynced-data-report 'report generated'
order display-cache-usage 'cache usage'
order clear-cache 'cache is cleared'
tail -n +$from log >lost
bytes=$(sed -n 's/.*bytes un-fsynced: \\([0-9]*\\) bytes.*/\\1/p' lost | tail -n 1)
echo ${bytes:-0} $(grep -c '=> file:' lost || true) $(grep -c '=> file:.*/data/data/' lost || true) $(sed -n 's/.*cache usage.* is \\([0-9]*\\).*%.*/\\1/p' lost)"))

(def ^:private catches "How often the fault of a disk tries to catch a node between a write of its database and the sync of it." 20)

(def ^:private catch-script
  "Stops a node at moments of no choice, until its database has written something that is not synced, and leaves it stopped then. A sync follows its
  write so soon that few kills fall between the two. A node that is never caught goes on, and is killed all the same."
  (str lazy-script "tries=$2
shift 2
pids=(\"$@\")
# A node that LazyFS says nothing about is not left stopped.
trap '[ $? = 0 ] || kill -CONT \"${pids[@]}\"' EXIT
while [ $tries -gt 0 ]; do
  tries=$(( tries - 1 ))
  kill -STOP \"${pids[@]}\" 2>/dev/null || exit 0
  from=$(( $(wc -l <log) + 1 ))
  order unsynced-data-report 'report generated'
  if tail -n +$from log | grep -q '=> file:.*/data/data/'; then exit 0; fi
  kill -CONT \"${pids[@]}\" 2>/dev/null || exit 0
  sleep 0.0$(( RANDOM % 90 + 10 ))
done"))

(defn- catch!
  "Stops a node where a kill loses something of its database, if there is such a moment soon."
  [lazy]
  (when-let [ps (seq (pids))]
    (cu/write-file! catch-script (str dir "/catch"))
    (c/exec :bash (str dir "/catch") (:lazyfs-dir lazy) catches ps)))

(defn lose!
  "Makes the disk of a killed node lose what was not synced. Returns what was lost, by the word of LazyFS."
  [lazy]
  (cu/write-file! lose-script (str dir "/lose"))
  (let [[bytes files tables usage] (map parse-long (str/split (c/exec :bash (str dir "/lose") (:lazyfs-dir lazy)) #"\s+"))]
    {:bytes bytes :files files :database-files tables :cache-percent usage}))

(defn at-authority
  "Runs a command of the authority on the first node."
  [test & args]
  (c/on-nodes test [(jepsen/primary test)]
              (fn [_ _] (c/exec (binary) args :--authority authority))))

(defn- on-first [test f]
  (get (c/on-nodes test [(jepsen/primary test)] (fn [t n] (f))) (jepsen/primary test)))

(defn operator
  "Runs a command as the operator, on the first node, and returns its output."
  [test & args]
  (on-first test
    #(c/exec (binary) args :-o :json
             (mapcat (fn [n] [:--addr (str (address n) ":" port)]) (:nodes test))
             :--ca (str dir "/operator/ca.crt") :--cert (str dir "/operator/operator.crt") :--key (str dir "/operator/operator.key"))))

(defn start-authority! [node]
  (c/exec :mkdir :-p authority)
  (c/exec (binary) :init :--authority authority :--advertise (str (address node) ":7605"))
  (cu/start-daemon!
    {:chdir dir :logfile authority-log :pidfile (str dir "/authority.pid") :match-executable? false}
    (binary) :authority :serve :--authority authority)
  (c/exec (binary) :authority :operator :jepsen :--authority authority :--out (str dir "/operator")))

(defn credentials
  "The folder on this machine with the certificate of the user of the workloads."
  [test]
  (.getCanonicalPath ^java.io.File (store/path! test "user")))

(defn live
  "How many nodes are ready, by the word of the cluster."
  [test]
  (->> (operator test :node :ls) (re-seq #"\"ready\":true") count))

(defn number
  "The number of the present node of a host, such as n3, as the cluster knows it. Hosts that joined again have another one than at first."
  [test node]
  (or (second (re-find (re-pattern (str "\"id\":\"(n\\d+)\"[^{}]*?\"addr\":\"" (address node) ":" port "\"")) (operator test :node :ls)))
      (throw (ex-info (str "no node of the cluster is at " node) {}))))

(defn await-whole
  "Waits until all nodes are ready and all ranges have all copies in sync."
  [test]
  (util/await-fn
    (fn []
      (let [n (live test)]
        (when (< n (count (:nodes test)))
          (throw (ex-info (str "only " n " nodes are ready") {}))))
      ; Ranges whose primaries have not gone back to their preferred nodes yet are served, so they count as whole.
      (let [status (operator test :status)]
        (doseq [trouble ["no_primary" "under_replicated" "refusing" "lost" "quarantined_copies"]]
          (when-not (str/includes? status (str "\"" trouble "\":0"))
            (throw (ex-info (str trouble ": " (subs status 0 (min 600 (count status)))) {})))))
      true)
    {:timeout (* 1000 boot-seconds) :retry-interval 1000 :log-interval 15000 :log-message "waits for the cluster"}))

(defn- set-up-cluster! [test]
  (util/await-fn (fn [] (when (< (live test) (count (:nodes test))) (throw (ex-info "not all ready" {}))) true)
                 {:timeout (* 1000 boot-seconds) :retry-interval 500 :log-interval 15000 :log-message "waits for nodes"})
  (operator test :table :create table :--colocate "/" :--replicas 3
            (when (< 1 (count (regions test))) [:--survive :region]))
  (operator test :role :create :jepsen)
  (operator test :grant :jepsen :--table "*" :--rights "read,write,delete")
  ; The numbers of tables and regions are metadata, which every reader of the cluster may see.
  (operator test :grant :jepsen :--cluster-wide :--rights "read")
  (operator test :user :create :jepsen :--no-password :--role :jepsen)
  (on-first test
    (fn []
      (io/make-parents (io/file (credentials test) "x"))
      (c/exec (binary) :cert :create :user :jepsen :--authority authority :--out (str dir "/user"))
      (doseq [f ["ca.crt" "user.crt" "user.key"]]
        (c/download (str dir "/user/" f) (str (credentials test) "/" f))))))

(defrecord Rhumb [lazy]
  db/DB
  (setup! [this test node]
    (c/su
      (install! test)
      (c/exec :mkdir :-p data)
      (when lazy (lazyfs/mount! lazy))
      (jepsen/synchronize test)
      (when (= node (jepsen/primary test))
        (start-authority! node)
        (doseq [n (:nodes test)]
          (let [token (c/exec (binary) :token :create :--authority authority :--node (node-name test n)
                              (when (= n node) :--founder))]
            (swap! (:tokens test) assoc n token))))
      (jepsen/synchronize test)
      (cu/write-file! (str (get @(:tokens test) node) "\n") (str dir "/token"))
      (c/exec :chmod "0600" (str dir "/token"))
      (start-node! test node)
      (jepsen/synchronize test boot-seconds)
      (when (= node (jepsen/primary test))
        (set-up-cluster! test)
        (await-whole test))
      (jepsen/synchronize test (* 2 boot-seconds))))

  (teardown! [this test node]
    (c/su
      (signal! :CONT)
      (kill-node!)
      (c/exec :pkill :-9 :-f "rhumb authority serv[e]" (c/lit "||") :true)
      (when lazy (try (lazyfs/umount! lazy) (catch Exception _)))
      (c/exec :bash :-c (str "cd " dir " 2>/dev/null && ls -A | grep -vx bin | xargs -r rm -rf || true"))))

  db/Kill
  (start! [this test node] (c/su (start-node! test node)))
  (kill! [this test node]
    (c/su
      (when lazy (catch! lazy))
      (let [ps (kill-node!)]
        ; What the node has not synced is lost, as with a power cut.
        (cond-> [:killed ps] lazy (conj (lose! lazy))))))

  db/Pause
  (pause! [this test node] (c/su [:paused (signal! :STOP)]))
  (resume! [this test node] (c/su [:resumed (signal! :CONT)]))

  db/LogFiles
  (log-files [this test node]
    (cond-> {log-file "rhumb.log"}
      lazy (assoc (:log-file lazy) "lazyfs.log")
      (= node (jepsen/primary test)) (assoc authority-log "authority.log"))))

(defn db [lazy?]
  (Rhumb. (when lazy? (lazyfs/lazyfs data))))
