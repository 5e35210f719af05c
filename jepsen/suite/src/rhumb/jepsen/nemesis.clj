(ns rhumb.jepsen.nemesis
  "Faults. Each package has a nemesis whose completions hold evidence of what was done."
  (:require [clojure.string :as str]
            [jepsen.control :as c]
            [jepsen.control.util :as cu]
            [jepsen.db :as jdb]
            [jepsen.generator :as gen]
            [jepsen.nemesis :as n]
            [jepsen.nemesis.combined :as nc]
            [jepsen.net :as net]
            [jepsen.random :as rand]
            [jepsen.util :as util]
            [rhumb.jepsen.db :as db])
  (:import (java.util List)))

(def faults "All kinds of faults." [:kill :pause :partition :clock :disk :damage :membership])

(defn- package
  "A package that starts and stops a fault in turn."
  [fault nemesis start color opts]
  (let [start-f (keyword (str "start-" (name fault))), stop-f (keyword (str "stop-" (name fault)))
        stop {:type :info :f stop-f}]
    {:nemesis (nemesis start-f stop-f)
     :generator (->> (gen/flip-flop (fn [t _] {:type :info :f start-f :value (start t)}) (gen/repeat stop))
                     (gen/stagger (:interval opts)))
     :final-generator stop
     :perf #{{:name (name fault) :start #{start-f} :stop #{stop-f} :color color}}}))

(defn- dropped
  "Counts the packets that the filter of a node has dropped."
  []
  (->> (c/su (c/exec :iptables :-L :INPUT :-n :-v :-x))
       str/split-lines
       (keep #(second (re-find #"^\s*(\d+)\s+\d+\s+DROP" %)))
       (map parse-long) (reduce + 0)))

(defn- heal-net!
  "Ends a partition. Counts the packets that were dropped until then, which are its evidence, in the test."
  [test]
  (let [packets (c/on-nodes test (fn [_ _] (dropped)))]
    (net/heal! (:net test) test)
    (swap! (:dropped test) + (reduce + (vals packets)))))

(defn- set-clock! [text]
  ; The file is replaced at once, so that the node never reads half of it.
  (c/su (c/exec :bash :-c (str "printf '%s' '" text "' >" db/clock-file ".new && mv " db/clock-file ".new " db/clock-file)))
  text)

(defn- heal!
  "Ends the faults that keep a cluster from being whole: partitions, nodes that are dead or stopped, and wrong clocks, which keep a new certificate
  from being valid."
  [test]
  (heal-net! test)
  (c/on-nodes test (fn [test node] (set-clock! "") (jdb/resume! (:db test) test node) (jdb/start! (:db test) test node))))

(defn- calm!
  "Heals the cluster, waits until it is whole, and fails if it is not. A change of a disk or of the nodes is made to a whole cluster: a second
  damaged disk while the first one is not mended would be more than any promise covers. Other faults may follow while the change lasts."
  [test]
  (when-let [[node how] (first @(:leaving test))]
    (throw (ex-info (str node " is " (name how)) {})))
  (heal! test)
  (db/await-whole test))

; Partitions

(defn- halves [nodes]
  (let [nodes (rand/shuffle nodes), k (quot (count nodes) 2)]
    [(vec (take k nodes)) (vec (drop k nodes))]))

(defn grudge
  "The links that a partition cuts: for each node, those from which it hears nothing."
  [test shape]
  (let [nodes (:nodes test)]
    (case shape
      :one (n/complete-grudge (n/split-one (rand/nth nodes) nodes))
      :majority (n/complete-grudge (halves nodes))
      :ring (n/majorities-ring nodes)
      ; One side hears the other, and is not heard.
      :one-way (let [[a b] (halves nodes)] (into {} (map (fn [x] [x (set b)])) a))
      :region (let [r (rand/nth (vec (db/regions test)))
                    [a b] ((juxt filter remove) #(= r (db/region test %)) nodes)]
                (n/complete-grudge [(vec a) (vec b)])))))

(defn- partition-nemesis [start-f stop-f]
  (reify
    n/Reflection (fs [_] #{start-f stop-f})
    n/Nemesis
    (setup! [this test] (net/heal! (:net test) test) this)
    (invoke! [_ test {:keys [f value] :as op}]
      (assoc op :value
             (if (= f start-f)
               (let [g (grudge test value)]
                 (net/drop-all! test g)
                 [value g])
               ; Another fault may have ended the partition before.
               (do (heal-net! test)
                   {:dropped (first (reset-vals! (:dropped test) 0))}))))
    (teardown! [_ test] (net/heal! (:net test) test))))

(defn partition-package [opts]
  (package :partition partition-nemesis
           (fn [test] (rand/nth (cond-> [:one :majority :ring :one-way]
                                  (< 1 (count (db/regions test))) (conj :region))))
           "#E9DCA0" opts))

; Kill and pause

(defn- some-nodes [test]
  (let [nodes (rand/shuffle (:nodes test))]
    (vec (take (rand/nth [1 1 2 (count nodes)]) nodes))))

(defn- process-nemesis [start! stop!]
  (fn [start-f stop-f]
    (reify
      n/Reflection (fs [_] #{start-f stop-f})
      n/Nemesis
      (setup! [this _] this)
      (invoke! [_ test {:keys [f value] :as op}]
        (assoc op :value (if (= f start-f)
                           (c/on-nodes test value #(start! (:db test) %1 %2))
                           (c/on-nodes test #(stop! (:db test) %1 %2)))))
      (teardown! [_ test]))))

(defn kill-package [opts]
  (package :kill (process-nemesis jdb/kill! jdb/start!) some-nodes "#E9A4A0" opts))

(defn pause-package [opts]
  (package :pause (process-nemesis jdb/pause! jdb/resume!)
           ; Not all at once: a cluster of which nothing moves shows nothing.
           #(vec (take (rand/nth [1 1 2]) (rand/shuffle (:nodes %)))) "#A0B1E9" opts))

; Clock. The clock of the machine stays as it is: a node reads the error of its clock from a file.

(defn- skew
  "The error of a clock."
  [restarts?]
  (rand/nth (cond-> ["offset=100ms" "offset=-100ms" "offset=5s" "offset=-5s" "offset=-1h"
                     "offset=1s strobe=200ms" "offset=60s strobe=200ms" "rate=1.05" "rate=0.95"]
              ; A node that restarts after its clock was an hour ahead holds no primaries for an hour, as designed. If that were done to
              ; one node after the other, nobody would be left to answer the final reads.
              (not restarts?) (conj "offset=1h"))))

(defn- seen-errors
  "Counts the changes of their clocks that all nodes have logged since the start of the test."
  [test]
  (->> (c/on-nodes test (fn [_ _] (parse-long (c/su (c/exec :bash :-c (str "grep -c 'clock of this node is wrong on purpose' " db/log-file " || true"))))))
       vals (reduce +)))

(defn- clock-nemesis [start-f stop-f]
  ; before is the count at the start of the present fault, or nil. The logs keep what earlier faults have caused, which is no evidence of this one.
  (let [before (atom nil)]
    (reify
      n/Reflection (fs [_] #{start-f stop-f})
      n/Nemesis
      (setup! [this _] this)
      (invoke! [_ test {:keys [f value] :as op}]
        (assoc op :value (if (= f start-f)
                           (do (reset! before (seen-errors test))
                               (c/on-nodes test (vec (keys value)) (fn [_ node] (set-clock! (get value node)))))
                           (let [from (first (reset-vals! before nil))
                                 logged (if from (- (seen-errors test) from) 0)]
                             (c/on-nodes test (fn [_ _] (set-clock! "")))
                             {:logged logged}))))
      (teardown! [_ test]))))

(defn clock-package [opts]
  (package :clock clock-nemesis
           (fn [test] (into {} (map (fn [node] [node (skew (some #{:kill :disk :damage} (:faults opts)))])) (take (rand/nth [1 2 3]) (rand/shuffle (:nodes test)))))
           "#A0E9DB" opts))

; Damage. The largest log of a killed node loses its end, or one bit of it changes. One disk at a time: the copies of the others are needed to mend it.

(def ^:private damage-script
  "Damages the largest log below a folder, and prints what it did. A log that was allocated ahead ends in zeros, which are left out."
  "set -e
cd \"$1\"
file=$(ls -S $(find . -name '*.log' -path '*data*') | head -n 1)
used=$(python3 -c \"import sys; print(len(open(sys.argv[1],'rb').read().rstrip(b'\\0')))\" \"$file\")
test \"$used\" -gt 4096
if [ \"$2\" = truncate ]; then
  lost=$(( 1 + $3 % 4096 ))
  truncate -s $(( used - lost )) \"$file\"
  echo \"lost $lost bytes at the end of $file\"
else
  at=$(( $3 % used ))
  python3 -c \"import sys; f=open(sys.argv[1],'r+b'); f.seek(int(sys.argv[2])); b=f.read(1)[0]; f.seek(-1,1); f.write(bytes([b^4]))\" \"$file\" \"$at\"
  echo \"changed a bit of byte $at of $file\"
fi
# The damage stays when the disk loses what was not synced.
sync \"$file\"")

(defn- damage!
  "Kills a node and damages its disk. Returns what was done, for the history."
  [how]
  (c/su
    (let [pids (db/kill-node!)]
      (cu/write-file! damage-script (str db/dir "/damage"))
      [pids (c/exec :bash (str db/dir "/damage") db/data (name how) (rand/long 1000000000))])))

(defn- damage-nemesis [start-f stop-f]
  (reify
    n/Reflection (fs [_] #{start-f stop-f})
    n/Nemesis
    (setup! [this _] this)
    (invoke! [_ test {:keys [f value] :as op}]
      (assoc op :value
             (try
               (if (= f start-f)
                 (let [[node how] value]
                   (calm! test)
                   {:damaged (c/on-nodes test [node] (fn [_ _] (damage! how)))})
                 {:started (c/on-nodes test #(jdb/start! (:db test) %1 %2))})
               (catch Exception e {:refused (ex-message e)}))))
    (teardown! [_ test])))

(defn damage-package [opts]
  (package :damage damage-nemesis (fn [test] [(rand/nth (vec (:nodes test))) (rand/nth [:truncate :flip])]) "#C9A0E9" opts))

; Membership. A node is drained and takes its roles back, or it is decommissioned and removed, and joins again as another node with an empty disk.

(def ^:private leave-seconds "How long a node may take to hand over all of its copies." 180)

(defn- leave!
  "Decommissions and removes a node, and empties its disk."
  [test node number]
  (db/operator test :node :decommission number :--timeout (str leave-seconds "s"))
  ; Refused for as long as the node counts somewhere.
  (util/await-fn #(db/operator test :node :rm number)
                 {:timeout (* 1000 leave-seconds) :retry-interval 500 :log-interval 15000 :log-message "waits for a node to leave"})
  (swap! (:leaving test) assoc node :gone)
  (c/on-nodes test [node]
    ; The folder itself stays: with the fault of disks it is the root of a mount.
    (fn [_ _] (c/su (db/kill-node!)
                    (c/exec :find db/data :-mindepth 1 :-delete)))))

(defn- join!
  "Starts a host as a new node, with a new name in its certificate."
  [test node name]
  (let [token (get (db/at-authority test :token :create :--node name) (first (:nodes test)))]
    (swap! (:leaving test) dissoc node)
    (c/on-nodes test [node]
      (fn [test node]
        (c/su (cu/write-file! (str token "\n") (str db/dir "/token"))
              (c/exec :chmod "0600" (str db/dir "/token"))
              (db/start-node! test node)))))
  (calm! test)
  (db/number test node))

(defn- membership-nemesis [start-f stop-f]
  ; undo ends what was begun, and returns the evidence. joined counts the names that were used.
  (let [undo (atom nil), joined (atom 0)]
    (reify
      n/Reflection (fs [_] #{start-f stop-f})
      n/Nemesis
      (setup! [this _] this)
      (invoke! [_ test {:keys [f value] :as op}]
        (assoc op :value
               (try
                 (if (= f start-f)
                   (let [[how node] value
                         number (do (calm! test) (db/number test node))]
                     (case how
                       :drain (do (swap! (:leaving test) assoc node :drained)
                                  (reset! undo #(do (heal! test)
                                                    (db/operator test :node :drain number :--undo)
                                                    (swap! (:leaving test) dissoc node)
                                                    [:drained number]))
                                  (db/operator test :node :drain number))
                       :leave (do (leave! test node number)
                                  (reset! undo #(let [name (str (db/node-name test node) "-" (swap! joined inc))]
                                                  [:left number :joined (join! test node name)]))))
                     {:began [how number]})
                   ; A node whose return has failed returns at the next stop, or at the end.
                   (if-let [f @undo]
                     (let [returned (f)]
                       (reset! undo nil)
                       {:returned returned})
                     {:nothing :begun}))
                 (catch Exception e {:refused (ex-message e)}))))
      (teardown! [_ test]))))

(defn- can-leave
  "The nodes without which their region still has another one. The first node stays, because the authority is on its host."
  [test]
  (let [count-of (frequencies (map #(db/region test %) (:nodes test)))]
    (filterv #(< 1 (count-of (db/region test %))) (rest (:nodes test)))))

(defn membership-package [opts]
  (package :membership membership-nemesis
           (fn [test]
             (let [leaving (can-leave test)]
               (if (and (seq leaving) (< (rand/double) 0.6))
                 [:leave (rand/nth leaving)]
                 [:drain (rand/nth (vec (:nodes test)))])))
           "#A0E9B0" opts))

(defn packages
  "The packages of the faults of a test, composed."
  [opts]
  (let [of {:kill kill-package :disk kill-package :pause pause-package :partition partition-package :clock clock-package
            :damage damage-package :membership membership-package}
        wanted (distinct (keep of (:faults opts)))]
    (if (empty? wanted)
      {:nemesis n/noop :generator nil :final-generator nil :perf #{}}
      (nc/compose-packages (mapv #(% opts) wanted)))))
